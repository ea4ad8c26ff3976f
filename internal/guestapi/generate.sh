#!/bin/sh
# Makes the Go code from proto/. Needs protoc; the two plugins are tools of this module.
set -eu
cd "$(dirname "$0")"
exec protoc -I proto \
  --plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
  --plugin=protoc-gen-connect-go="$(go tool -n protoc-gen-connect-go)" \
  --go_out=. --go_opt=module=ravi/internal/guestapi \
  --connect-go_out=. --connect-go_opt=module=ravi/internal/guestapi \
  process/process.proto filesystem/filesystem.proto ravi/guest.proto
