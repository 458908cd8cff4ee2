"""Share links of Google Drive and Dropbox become links to the file itself."""

from __future__ import annotations

import pytest

from pipelines.net.addresses import InvalidUrlError, Provider, check_url_text, direct_download_url
from tests.tables import every

ID = "1A2b3C4d5E6f7G8h9I0j_K-lMnOpQrStU"
DRIVE = f"https://drive.usercontent.google.com/download?id={ID}&export=download&confirm=t"


@every(
    "link",
    [
        f"https://drive.google.com/file/d/{ID}/view",
        f"https://drive.google.com/file/d/{ID}/view?usp=sharing",
        f"https://drive.google.com/file/d/{ID}/preview",
        f"https://drive.google.com/file/d/{ID}",
        f"https://drive.google.com/file/u/1/d/{ID}/edit",
        f"https://drive.google.com/a/example.org/file/d/{ID}/view",
        f"https://drive.google.com/open?id={ID}",
        f"https://drive.google.com/open?usp=drive_fs&id={ID}",
        f"https://drive.google.com/uc?id={ID}",
        f"https://drive.google.com/uc?export=download&id={ID}",
        f"https://drive.google.com/u/0/uc?id={ID}&export=download",
        f"https://docs.google.com/uc?export=download&id={ID}",
        f"http://drive.google.com/uc?id={ID}",
        f"https://drive.usercontent.google.com/download?id={ID}&export=download&authuser=0",
        f"https://www.googleapis.com/drive/v3/files/{ID}?alt=media",
    ],
)
def test_google_drive_links_lead_past_the_page_that_asks(link: str) -> None:
    assert direct_download_url(link, Provider.GDRIVE) == DRIVE
    assert direct_download_url(DRIVE, Provider.GDRIVE) == DRIVE


def test_old_google_drive_links_keep_their_resource_key() -> None:
    link = f"https://drive.google.com/file/d/{ID}/view?usp=sharing&resourcekey=0-abc_DEF"
    assert direct_download_url(link, Provider.GDRIVE) == f"{DRIVE}&resourcekey=0-abc_DEF"


def test_with_a_token_google_drive_is_asked_through_its_api() -> None:
    link = f"https://drive.google.com/file/d/{ID}/view"
    assert direct_download_url(link, Provider.GDRIVE, has_token=True) == (
        f"https://www.googleapis.com/drive/v3/files/{ID}?alt=media&supportsAllDrives=true"
    )


@every(
    ("link", "direct"),
    [
        (
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=0",
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=1",
        ),
        (
            "https://www.dropbox.com/s/abc123def456/clip.mp4",
            "https://www.dropbox.com/s/abc123def456/clip.mp4?dl=1",
        ),
        (
            "https://www.dropbox.com/scl/fi/x1y2z3/My%20clip.mov?rlkey=k3y&st=q1&dl=0",
            "https://www.dropbox.com/scl/fi/x1y2z3/My%20clip.mov?rlkey=k3y&st=q1&dl=1",
        ),
        (
            "https://dropbox.com/scl/fi/x1y2z3/a.mov?rlkey=k3y&raw=1",
            "https://www.dropbox.com/scl/fi/x1y2z3/a.mov?rlkey=k3y&dl=1",
        ),
        (
            "https://dl.dropboxusercontent.com/s/abc/clip.mp4",
            "https://dl.dropboxusercontent.com/s/abc/clip.mp4",
        ),
        (
            "https://uc1234.dl.dropboxusercontent.com/cd/0/get/x/file",
            "https://uc1234.dl.dropboxusercontent.com/cd/0/get/x/file",
        ),
    ],
)
def test_dropbox_links_ask_for_the_download(link: str, direct: str) -> None:
    assert direct_download_url(link, Provider.DROPBOX) == direct
    assert check_url_text(direct).url == direct


@every(
    ("link", "provider"),
    [
        (f"https://example.com/file/d/{ID}/view", Provider.GDRIVE),
        (f"https://drive.google.com.evil.com/file/d/{ID}/view", Provider.GDRIVE),
        (f"https://drive.google.com/drive/folders/{ID}", Provider.GDRIVE),
        (f"https://docs.google.com/document/d/{ID}/edit", Provider.GDRIVE),
        ("https://drive.google.com/file/d/short/view", Provider.GDRIVE),
        ("https://drive.google.com/open?id=../../x", Provider.GDRIVE),
        ("https://drive.google.com/uc", Provider.GDRIVE),
        (f"https://www.googleapis.com/open?id={ID}", Provider.GDRIVE),
        ("https://www.dropbox.com/s/abc/clip.mp4", Provider.GDRIVE),
        (f"https://drive.google.com/file/d/{ID}/view", Provider.DROPBOX),
        ("https://www.dropbox.com.evil.com/s/abc/clip.mp4", Provider.DROPBOX),
        ("https://evildl.dropboxusercontent.com/s/abc", Provider.DROPBOX),
        ("https://www.dropbox.com/sh/abc/def?dl=0", Provider.DROPBOX),
        ("https://www.dropbox.com/scl/fo/abc/def?rlkey=k", Provider.DROPBOX),
        ("https://www.dropbox.com/home", Provider.DROPBOX),
        ("https://www.dropbox.com/", Provider.DROPBOX),
    ],
)
def test_what_is_no_link_to_one_file_of_that_provider_is_invalid(
    link: str, provider: Provider
) -> None:
    with pytest.raises(InvalidUrlError):
        direct_download_url(link, provider)
