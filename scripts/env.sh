# Makes the project's own Python environment; sourced by the other scripts.
#   . scripts/env.sh EXTRAS        e.g.  . scripts/env.sh embedded,test
# One lock file (requirements.lock) pins every package with its hashes. When nothing has changed
# since the last time this costs a few milliseconds. MERGUS_VENV chooses where the environment lives.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${MERGUS_VENV:-$root/.venv}
uv_version=0.13.7

say() { printf '%s\n' "· $*" >&2; }
die() { printf '%s\n' "error: $*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.11 python3.12 python3.13; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer is needed; set PYTHON to one"
}

# Whether $venv holds everything for these extras, as this checkout's files name it.
installed() {
  local key wider extras
  key=$(cat requirements.lock pyproject.toml | cksum | tr ' ' '-')-$(printf '%s' "$root" | cksum | tr ' ' '-')
  stamp=$venv/.mergus-stamp.$1.$key
  case $1 in
    embedded) wider='embedded,spark embedded,test' ;;
    *) wider=embedded,test ;;
  esac
  for extras in "$1" $wider; do
    if [ -f "$venv/.mergus-stamp.$extras.$key" ]; then return 0; fi
  done
  return 1
}

uv_install() {
  local extras=$1
  shift
  VIRTUAL_ENV="$venv" "$venv/bin/uv" pip install "$@" --constraint requirements.lock --editable ".[$extras]" >&2
}

# Every step says `|| exit`: bash ignores `set -e` in what is called before `||`.
install() {
  local python
  if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || exit 1
    say "making the environment with $("$python" --version) (first time only)"
    "$python" -m venv --clear "$venv" ||
      die "'$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv"
  fi
  if [ "$("$venv/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != "$uv_version" ]; then
    say "installing uv $uv_version"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" || exit 1
  fi
  say "installing what requirements.lock names for [$1]"
  case $1 in *spark*) say "Spark is a download of some 400 MB; it needs Java 17" ;; esac
  # From uv's cache if it has everything: versions are pinned, and a registry that sends no cache headers would
  # otherwise make uv build Spark again. The last try is for proxies that only the system's certificates accept.
  uv_install "$1" --offline --quiet 2>/dev/null || uv_install "$1" || uv_install "$1" --system-certs || exit 1
  rm -f "$venv/.mergus-stamp.$1."*
  touch "$stamp" || exit 1
}

if ! installed "${1:?extras}"; then
  (
    # two scripts may start at once
    if command -v flock >/dev/null 2>&1; then flock 9 || exit 1; fi
    installed "$1" || install "$1"
  ) 9>"$root/.venv.lock" || die "the environment in $venv could not be made"
fi
shift
export PATH="$venv/bin:$PATH"
unset PYTHONHOME
# without compiled modules each process compiles every module that it imports, which takes most of its start
unset PYTHONDONTWRITEBYTECODE
