#!/usr/bin/env bash
# Makes this machine able to build and run the images of compose.yaml with podman, without a registry of images:
#   prepare.sh PYTHON CACHE
# PYTHON fetches the wheels, CACHE keeps them and what else takes long. The last line on stderr says why it cannot.
set -euo pipefail
python=$1 cache=$2
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
no() { echo "$*" >&2; exit 1; }

packages=(podman buildah runc debootstrap netavark aardvark-dns iptables containernetworking-plugins curl)
# Of several names, `command -v` succeeds when one is found.
missing=$(for tool in podman runc debootstrap curl; do command -v "$tool" >/dev/null || echo "$tool"; done)
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || no "missing and only root may install:" $missing
  command -v apt-get >/dev/null || no "missing, and there is no apt to install:" $missing
  apt-get -qq update >&2
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >&2
fi
[ "$(id -u)" = 0 ] || no "the containers of this test run as root's"

mkdir -p "$cache"
# crun cannot work with hybrid cgroups, and podman's own limits are more than root may set without a capability.
limit() { local hard; hard=$(ulimit -H "$1"); if [ "$hard" != unlimited ] && [ "$hard" -lt "$2" ]; then echo "$hard"; else echo "$2"; fi; }
files=$(limit -n 20000) processes=$(limit -u 30000)
cat >"$cache/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
runtime = "runc"
END
cat >"$cache/pip.conf" <<END
[global]
no-index = true
find-links = /wheels
disable-pip-version-check = true
END
export CONTAINERS_CONF=$cache/containers.conf

base=localhost/paceline-base:bookworm-cxx
if ! podman image exists "$base"; then
  rootfs=$cache/rootfs
  rm -rf "$rootfs"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,g++ bookworm "$rootfs" >&2
  tar -C "$rootfs" -c . | podman import - "$base" >&2
  rm -rf "$rootfs"
fi
podman run --rm "$base" true || no "podman cannot run a container here: see the lines above"

version='import sys; print("%d.%d" % sys.version_info[:2])'
theirs=$(podman run --rm "$base" python3 -c "$version")
[ "$("$python" -c "$version")" = "$theirs" ] || no "the base image has Python $theirs, for which this Python has no wheels"

wheels=$cache/wheels
key=$(cat "$repo/pyproject.toml" "$repo/constraints.txt" | cksum)
if [ "$(cat "$wheels/key" 2>/dev/null)" != "$key" ]; then
  rm -rf "$wheels"
  mkdir -p "$wheels"
  hatchling=$(grep -o 'hatchling==[0-9.]*' "$repo/pyproject.toml")
  "$python" -m pip --quiet --quiet download --dest "$wheels" --constraint "$repo/constraints.txt" \
    --retries 0 --timeout 10 --extra-index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" \
    "$hatchling" "$repo[all]" >&2
  echo "$key" >"$wheels/key"
fi
