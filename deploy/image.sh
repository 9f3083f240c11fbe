#!/bin/sh
# Packs a built host as an OCI image, without a daemon and without a base image. `make image` calls this.
#
#   sh deploy/image.sh BINARY FOLDER           writes FOLDER/pilothouse-VERSION-ARCH.tar, and prints its path
#   sh deploy/image.sh --files BINARY FOLDER   writes the image's files to the new FOLDER, for deploy/Dockerfile
#
# The image has the stripped host, the libraries that the host links to, the CA certificates of Mozilla, and the user 65532. The same inputs
# give the same bytes. `docker load`, `podman load`, `ctr image import`, `skopeo` and `crane push` read the archive.
#
# CA_CERTIFICATES=FILE   the certificates, instead of those of Debian's package ca-certificates
# IMAGE_SOURCE=URL       the repository, for the label org.opencontainers.image.source
set -eu
# The order of names, and of bytes, does not depend on the language of the machine.
export LC_ALL=C
umask 022

# Kilobytes of the archive. A larger one has gained something that it does not need.
most=60000

fail() {
    echo "image: $1" >&2
    exit 1
}

only_files=
if [ "${1:-}" = --files ]; then
    only_files=yes
    shift
fi
[ $# -eq 2 ] || fail "usage: sh deploy/image.sh [--files] BINARY FOLDER"
binary=$1
folder=$2
root=$(cd "$(dirname "$0")/.." && pwd)
[ -f "$binary" ] || fail "there is no host at $binary: build it with 'make release', or call 'make image'"
for program in tar gzip sha256sum readelf; do
    command -v "$program" >/dev/null || fail "$program is missing: install tar, gzip, coreutils and binutils"
done
tar --version | grep -q GNU || fail "this tar cannot sort names: install GNU tar"

case $(readelf -h "$binary" | sed -n 's/^ *Machine: *//p') in
    *X86-64) arch=amd64 triple=x86_64-linux-gnu ;;
    AArch64) arch=arm64 triple=aarch64-linux-gnu ;;
    *) fail "$binary is for a machine other than amd64 and arm64" ;;
esac
# The compiler knows where the libraries of its target are, and binutils of that target can strip.
tools=$triple-
command -v "${tools}gcc" >/dev/null || tools=
[ "$("${tools}gcc" -dumpmachine 2>/dev/null | cut -d- -f1)" = "${triple%%-*}" ] ||
    fail "$triple-gcc is missing, which finds the libraries: install gcc (for another architecture Debian's package gcc-$(echo "$triple" | tr _ -))"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
licences=$(sed -n '/^\[workspace.package\]/,/^\[/s/^license = "\(.*\)"/\1/p' "$root/Cargo.toml")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=$work/files
layout=$work/layout
blobs=$layout/blobs/sha256
mkdir -p "$files/usr/local/bin" "$files/lib" "$files/etc/ssl/certs" "$files/tmp" "$blobs"
chmod 1777 "$files/tmp"

"${tools}strip" -o "$files/usr/local/bin/pilothouse" "$binary"
chmod 755 "$files/usr/local/bin/pilothouse"

# All libraries lie in one folder, in which the loaders of all distributions look.
ln -s lib "$files/lib64"
library() {
    [ ! -e "$files/lib/$1" ] || return 0
    found=$("${tools}gcc" -print-file-name="$1")
    [ -f "$found" ] || fail "the library $1 of $binary is not on this machine"
    cp -L "$found" "$files/lib/$1"
    chmod 755 "$files/lib/$1"
    libraries "$files/lib/$1"
}
libraries() {
    for name in $(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        library "$name"
    done
}
loader=$(readelf -l "$binary" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
[ -n "$loader" ] || fail "$binary names no loader: it must be linked with glibc"
library "$(basename "$loader")"
libraries "$binary"
[ -e "$files$loader" ] || fail "the loader $loader of $binary is in a folder that the image does not have"

# Those of the package, without what this machine trusts besides.
certificates=$files/etc/ssl/certs/ca-certificates.crt
if [ -n "${CA_CERTIFICATES:-}" ]; then
    cp -L "$CA_CERTIFICATES" "$certificates"
else
    set -- /usr/share/ca-certificates/mozilla/*.crt
    [ -f "$1" ] || fail "there are no CA certificates: install the package ca-certificates, or set CA_CERTIFICATES to a file of them"
    cat "$@" >"$certificates"
fi
grep -q 'BEGIN CERTIFICATE' "$certificates" || fail "$certificates has no certificate"
chmod 644 "$certificates"

cat >"$files/etc/passwd" <<END
root:x:0:0:root:/:/nonexistent
pilothouse:x:65532:65532:pilothouse:/:/nonexistent
END
cat >"$files/etc/group" <<END
root:x:0:
pilothouse:x:65532:
END
# glibc reads names of hosts from /etc/hosts first.
echo 'hosts: files dns' >"$files/etc/nsswitch.conf"

if [ -n "$only_files" ]; then
    [ ! -e "$folder" ] || fail "$folder exists: name a new folder"
    mv "$files" "$folder"
    exit
fi

# A tar archive whose bytes depend on names, modes and contents only.
archive() {
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$1" -cf - .
}
digest() {
    sha256sum "$1" | cut -d' ' -f1
}
# Puts a file among the blobs, and prints its descriptor of the media type $2.
blob() {
    cp "$1" "$blobs/$(digest "$1")"
    printf '{"mediaType":"%s","digest":"sha256:%s","size":%s}' "$2" "$(digest "$1")" "$(wc -c <"$1")"
}

archive "$files" >"$work/layer.tar"
inner=$(digest "$work/layer.tar")
# Without the time and the name of the file.
gzip -n "$work/layer.tar"
layer=$(blob "$work/layer.tar.gz" application/vnd.oci.image.layer.v1.tar+gzip)

labels="\"org.opencontainers.image.title\":\"pilothouse\",\"org.opencontainers.image.version\":\"$version\""
labels="$labels,\"org.opencontainers.image.licenses\":\"$licences\""
if [ -n "${IMAGE_SOURCE:-}" ]; then
    labels="$labels,\"org.opencontainers.image.source\":\"$IMAGE_SOURCE\""
fi
cat >"$work/config" <<END
{
  "created": "1970-01-01T00:00:00Z",
  "architecture": "$arch",
  "os": "linux",
  "config": {
    "User": "65532:65532",
    "Env": ["PATH=/usr/local/bin"],
    "Entrypoint": ["/usr/local/bin/pilothouse"],
    "WorkingDir": "/",
    "Labels": {$labels}
  },
  "rootfs": {"type": "layers", "diff_ids": ["sha256:$inner"]},
  "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "deploy/image.sh"}]
}
END
config=$(blob "$work/config" application/vnd.oci.image.config.v1+json)

cat >"$work/manifest" <<END
{
  "schemaVersion": 2,
  "mediaType": "application/vnd.oci.image.manifest.v1+json",
  "config": $config,
  "layers": [$layer]
}
END
manifest=$(blob "$work/manifest" application/vnd.oci.image.manifest.v1+json)

echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
names="\"io.containerd.image.name\":\"docker.io/library/pilothouse:$version\",\"org.opencontainers.image.ref.name\":\"$version\""
cat >"$layout/index.json" <<END
{
  "schemaVersion": 2,
  "mediaType": "application/vnd.oci.image.index.v1+json",
  "manifests": [${manifest%?},"platform":{"architecture":"$arch","os":"linux"},"annotations":{$names}}]
}
END
# What docker and crane read.
cat >"$layout/manifest.json" <<END
[{"Config":"blobs/sha256/$(digest "$work/config")","RepoTags":["pilothouse:$version"],"Layers":["blobs/sha256/$(digest "$work/layer.tar.gz")"]}]
END

mkdir -p "$folder"
image=$folder/pilothouse-$version-$arch.tar
archive "$layout" >"$work/image.tar"
size=$(($(wc -c <"$work/image.tar") / 1000))
[ "$size" -le "$most" ] || fail "the image has $size kB, and may have $most"
mv "$work/image.tar" "$image"
echo "image: $size kB, sha256 $(digest "$image")" >&2
echo "$image"
