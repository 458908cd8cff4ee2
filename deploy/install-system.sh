#!/bin/sh
# Debian packages of the image: `run` what the service needs, `build` what installing it needs.
set -eu

case "$1" in
    run) packages="ca-certificates python3 tini" ;;
    build) packages="python3-venv" ;;
    *) echo "usage: install-system.sh run|build" >&2; exit 2 ;;
esac

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# A list of names.
# shellcheck disable=SC2086
apt-get -qq install --yes --no-install-recommends $packages > /dev/null
apt-get -qq clean
rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /usr/share/doc/* /usr/share/man/*
