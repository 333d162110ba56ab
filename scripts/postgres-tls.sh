#!/usr/bin/env bash
# A gallery in a PostgreSQL that wants TLS and passwords: every way in that libpq knows, and what is said where none is.
#
#     scripts/postgres-tls.sh /usr/lib/postgresql/15/bin target/release/rehang
#
# It needs PostgreSQL's programs with TLS and pgvector (Debian's `postgresql`, pgvector's `make install`), openssl and python3. It makes an
# authority, a server with a certificate of it and a gallery of 500 rows in a folder of its own, and ends with "all held" or with what did not.
set -euo pipefail
programs=$1
rehang=$(realpath "$2")
folder=$(mktemp -d /tmp/rehang-tls-XXXXXX)
chmod 755 "$folder"
cd "$folder"
# PostgreSQL does not run as root.
as_server() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
trap 'as_server "$programs/pg_ctl" -s -D "$folder/data/db" stop -m immediate; rm -rf "$folder"' EXIT

certificate() { # NAME SUBJECT EXTENSION
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA authority.pem -CAkey authority.key -CAcreateserial -days 1 -extfile <(echo "$3") -out "$1.pem" 2>/dev/null
}
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj "/CN=authority" -keyout authority.key -out authority.pem 2>/dev/null
certificate server "/CN=localhost" "subjectAltName=DNS:localhost"
certificate owner "/CN=owner" "extendedKeyUsage=clientAuth"

mkdir data
cp server.key server.pem authority.pem data/
echo "s3cret:word" > password
chmod 644 password
[ "$(id -u)" != 0 ] || chown -R postgres data
chmod 600 data/server.key
as_server "$programs/initdb" -D data/db -U owner --auth=scram-sha-256 --pwfile=password > /dev/null
cat > hba <<'HBA'
hostssl   by_certificate all all cert
hostssl   all            all all scram-sha-256
hostnossl all            all all reject
HBA
as_server tee data/db/pg_hba.conf < hba > /dev/null
port=$((20000 + RANDOM % 20000))
as_server "$programs/pg_ctl" -s -D data/db -l "$folder/data/log" -w start \
  -o "-p $port -k $folder/data -c ssl=on -c ssl_cert_file=$folder/data/server.pem -c ssl_key_file=$folder/data/server.key -c ssl_ca_file=$folder/data/authority.pem"
"$programs/postgres" --version

sql() { PGPASSWORD=$(cat password) PGSSLMODE=require "$programs/psql" -h localhost -p "$port" -U owner -qAt -v ON_ERROR_STOP=1 "$@"; }
for database in shop by_certificate; do
  sql -d postgres -c "CREATE DATABASE $database"
done
sql -d shop <<'SQL'
CREATE EXTENSION vector;
CREATE TABLE texts (id int PRIMARY KEY, body text, embedding vector(8));
INSERT INTO texts SELECT i, 'text ' || i, (SELECT array_agg(sin(i * j)) FROM generate_series(1, 8) j)::vector FROM generate_series(1, 500) i;
SQL

python3 - <<'PYTHON'
import math, struct
def write(name, rows):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (len(rows), len(rows[0]))
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    data = b"".join(struct.pack("<%df" % len(row), *row) for row in rows)
    open(name, "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)
write("new.npy", [[math.sin(i * j) + 0.1 * math.cos(i + j) for j in range(1, 13)] for i in range(1, 501)])
open("ids.txt", "w").writelines(f"{i}\n" for i in range(1, 501))
PYTHON

held=0
# What is printed must say the words, and never the password.
expect() { # RC WORDS COMMAND…
  local wanted=$1 words=$2 said rc=0
  shift 2
  said=$("$@" 2>&1) || rc=$?
  if [ "$rc" != "$wanted" ] || ! grep -qF -- "$words" <<< "$said" || grep -qF "s3cret" <<< "$said"; then
    printf 'DID NOT HOLD (exit %s, wanted %s and %q): %s\n%s\n' "$rc" "$wanted" "$words" "$*" "$said"
    exit 1
  fi
  held=$((held + 1))
  printf '%2d  exit %s  %s\n' "$held" "$rc" "$(grep -F -m 1 -- "$words" <<< "$said")"
}
at() { export DATABASE_URL="postgresql://owner@${2:-localhost}:$port/${3:-shop}?$1"; }
trusted="sslmode=verify-full&sslrootcert=$folder/authority.pem"
export PGPASSFILE="$folder/none"

at "$trusted"
expect 2 "password" "$rehang" init --table texts --old-name small --source body --new-name large --new-dimension 12
export PGPASSWORD="wrong"
expect 2 "password" "$rehang" init --table texts --old-name small --source body --new-name large --new-dimension 12
PGPASSWORD=$(cat password)
expect 0 "rehang.toml is written" "$rehang" init --table texts --old-name small --source body --new-name large --new-dimension 12
printf '[encoder]\nkind = "table"\nvectors = "new.npy"\nids = "ids.txt"\n' >> rehang.toml
expect 0 "500 items" "$rehang" gallery adopt
at "sslmode=verify-full"
expect 2 "certificate" "$rehang" doctor --config rehang.toml
at "$trusted" 127.0.0.1
expect 2 "certificate" "$rehang" doctor --config rehang.toml
at "sslmode=disable"
expect 2 "no encryption" "$rehang" doctor --config rehang.toml
for mode in require prefer; do
  at "sslmode=$mode"
  expect 0 "Nothing is wrong." "$rehang" doctor --config rehang.toml
done
at "sslmode=require&sslrootcert=$folder/owner.pem"
expect 2 "certificate" "$rehang" doctor --config rehang.toml
at "sslmode=verify-ca&sslrootcert=$folder/authority.pem"
expect 0 "Nothing is wrong." "$rehang" doctor --config rehang.toml
unset PGPASSWORD
printf 'localhost:%s:shop:owner:s3cret\\:word\n' "$port" > passwords
chmod 600 passwords
export PGPASSFILE="$folder/passwords"
at "$trusted"
expect 0 "Nothing more is to be embedded" "$rehang" upgrade auto --yes
expect 0 '"large"' "$rehang" upgrade status
export PGPASSFILE="$folder/none"
at "$trusted" localhost by_certificate
expect 2 "certificate" "$rehang" doctor --config rehang.toml
at "$trusted&sslcert=$folder/owner.pem" localhost by_certificate
expect 2 "sslkey" "$rehang" doctor --config rehang.toml
at "$trusted&sslcert=$folder/owner.pem&sslkey=$folder/owner.key" localhost by_certificate
expect 2 "pgvector" "$rehang" doctor --config rehang.toml
PGSSLMODE=verify-full PGSSLROOTCERT="$folder/authority.pem" PGPASSWORD=$(cat password)
export PGSSLMODE PGSSLROOTCERT PGPASSWORD
DATABASE_URL="host=localhost port=$port user=owner dbname=shop"
expect 0 "500 items" "$rehang" gallery info --config rehang.toml
! grep -rqF "s3cret" rehang.toml rehang.upgrade || { echo "a file of ours holds the password"; exit 1; }
echo "all held: $held"
