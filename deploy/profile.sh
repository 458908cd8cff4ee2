# shellcheck shell=sh
# Login shells, with which KubeRay and Ray's launcher run commands, set PATH anew.
export PATH="/opt/vas/bin:$PATH"
