// The link just works: the form that uses it up is sent at once. The page that was open is kept.
if (location.hash.startsWith("#/dashboard/")) localStorage.setItem("vas-next", location.hash.slice(1));
document.getElementById("sign-in")?.requestSubmit();
