#!/bin/sh
# Installs kcat, PostgreSQL, nftables, promtool, curl and jq where apt is at hand. Tests of what is missing
# skip and say so; so this never fails.

wanted=""
command -v kcat >/dev/null 2>&1 || wanted="kcat"
command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 ||
    wanted="$wanted postgresql"
command -v nft >/dev/null 2>&1 || [ -x /usr/sbin/nft ] || wanted="$wanted nftables"
command -v promtool >/dev/null 2>&1 || wanted="$wanted prometheus"
for tool in curl jq; do
    command -v "$tool" >/dev/null 2>&1 || wanted="$wanted $tool"
done
if [ -z "$wanted" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed, and there is no apt-get here: $wanted; their tests will skip"
    exit 0
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$as_root apt-get install -y -qq --no-install-recommends $wanted >/dev/null 2>&1 ||
    { $as_root apt-get update -qq >/dev/null 2>&1 &&
        $as_root apt-get install -y -qq --no-install-recommends $wanted >/dev/null 2>&1; } ||
    echo "could not be installed: $wanted; their tests will skip"
