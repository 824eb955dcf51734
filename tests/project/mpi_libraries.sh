#!/usr/bin/env bash
# GradientFlow with Debian's Open MPI and MPICH: installs it in a small Debian of its own for each, and tries doctor,
# run, bench and netlab there. Nothing is installed into this system.
#
#   tests/project/mpi_libraries.sh [--keep FOLDER] [openmpi] [mpich]
#
# Needs root, debootstrap and the network; takes a while, and exits with 77 where something is missing. With --keep
# the Debians stay in FOLDER and serve the next time.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
release=${DEBIAN_RELEASE:-bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only root can make a Debian in a folder"
for program in debootstrap unshare pivot_root; do
  command -v "$program" > /dev/null || skip "$program is not installed"
done
unshare --mount true 2> /dev/null || skip "this process may not make mount namespaces"

keep=
if [ "${1:-}" = --keep ]; then keep=$2; shift 2; fi
[ $# -gt 0 ] || set -- openmpi mpich
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  work=$(cd "$keep" && pwd)
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi

# Runs a script, from standard input, in one of the Debians. It has to be a root of its own and no chroot, because
# netlab goes from one mount namespace to another.
inside() {
  unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount --rbind /sys sys
    mkdir -p before
    pivot_root . before
    umount -l /before
    exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive bash -euc "$2"
  ' bash "$1" "$(cat)"
}

packages_of() {
  case $1 in
    openmpi) echo openmpi-bin libopenmpi-dev ;;
    mpich) echo mpich libmpich-dev ;;
    *) echo "no such library: $1" >&2; exit 2 ;;
  esac
}

make_system() {
  [ ! -e "$work/$1/ready" ] || return 0
  rm -rf "${work:?}/$1"
  echo "== $1: a Debian $release"
  debootstrap --variant=minbase --include=ca-certificates,g++,iproute2,procps,python3,python3-dev,python3-venv \
    "$release" "$work/$1" "$mirror" > "$work/$1.log"
  for file in /etc/pip.conf /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do # a mirror or proxy of this machine
    [ ! -e "$file" ] || cp "$file" "$work/$1$file"
  done
  inside "$work/$1" >> "$work/$1.log" 2>&1 << END
apt-get update -qq
apt-get install -y -qq --no-install-recommends $(packages_of "$1")
END
  touch "$work/$1/ready"
}

for library in "$@"; do
  packages_of "$library" > /dev/null
  make_system "$library"
  echo "== $library: installation"
  rm -rf "$work/$library/root/source"
  mkdir "$work/$library/root/source"
  git -C "$source" ls-files -z | tar --directory "$source" --null --files-from=- --create \
    | tar --directory "$work/$library/root/source" --extract
  inside "$work/$library" << END
cd /root
rm -rf venv
python3 -m venv venv
. venv/bin/activate
pip install --quiet --disable-pip-version-check "./source[mpi]"
if [ $library = mpich ]; then # doctor has to say what is to be done; then do that
  if gradientflow doctor > doctor.txt; then echo "mpi4py's wheel was expected not to find libmpi.so.12"; exit 1; fi
  grep -F -e "--no-binary mpi4py mpi4py" doctor.txt
  pip install --quiet --disable-pip-version-check --force-reinstall --no-cache-dir --no-binary mpi4py mpi4py
fi
END
  echo "== $library: doctor, run, bench, netlab"
  inside "$work/$library" << END
cd /root
. venv/bin/activate
gradientflow doctor
gradientflow run -np 2 -- sh -c 'echo "\$RANK/\$WORLD_SIZE \$LOCAL_RANK/\$LOCAL_WORLD_SIZE \$MASTER_ADDR"' \
  | sort > ranks.txt
printf '%s\n' "0/2 0/2 127.0.0.1" "1/2 1/2 127.0.0.1" | diff - ranks.txt
gradientflow bench allreduce -n 2 --sizes 1K,1M --seconds 0.1
if [ $library = openmpi ]; then
  gradientflow netlab --hosts 2 -- gradientflow bench allreduce --sizes 1K,1M --seconds 0.1
else
  if gradientflow netlab --hosts 2 -- true 2> refused.txt; then echo "netlab was expected to refuse"; exit 1; fi
  grep "Open MPI only" refused.txt
fi
END
done
echo "== all in order"
