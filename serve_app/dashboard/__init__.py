"""The dashboard: pages of the service's own for people, over the operations of the API."""

PATH = "/dashboard"
SIGN_IN_PATH = f"{PATH}/sign-in"
OIDC_PATH = f"{SIGN_IN_PATH}/oidc"
INVITATION_PATH = f"{PATH}/invitation"
OPERATOR_PATH = f"{PATH}/operator"
"""Pages of the operator, who has a session and a cookie of another kind."""
