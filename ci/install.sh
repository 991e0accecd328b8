#!/bin/sh
# Install this jsplan with the versions of the lock files, each checked by its hash, into the Python of PIP. Arguments are extras.
# -I: a folder `pip` of the current folder, which may be a checkout, is not what runs.
set -eu
pip=${PIP:-python -I -m pip}
here=$(cd "$(dirname "$0")/.." && pwd)
for extra do
    shift
    set -- "$@" -r "$here/requirements-$extra.lock"
done
$pip install --quiet --disable-pip-version-check --require-hashes -r "$here/requirements-build.lock"
$pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r "$here/requirements-run.lock" "$@"
$pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation "$here"
