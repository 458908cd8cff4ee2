"""The dashboard: pages of the service's own for people, over the operations of the API."""

PATH = "/dashboard"
SIGN_IN_PATH = f"{PATH}/sign-in"
