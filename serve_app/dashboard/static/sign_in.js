// The link just works: the form that uses it up is sent at once.
document.getElementById("sign-in").requestSubmit();
