#!/bin/sh
# Make the secrets of docker-compose.yml in deploy/secrets; those that are there stay as they are.
# The directory is its owner's alone. The files in it are readable, since the users inside the
# containers are others.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 0700 secrets

random() {
    od -An -N 24 -tx1 /dev/urandom | tr -d ' \n'
}

keep() {
    if [ ! -s "secrets/$1" ]; then
        printf '%s\n' "$2" > "secrets/$1"
        chmod 0644 "secrets/$1"
        echo "made deploy/secrets/$1"
    fi
}

keep postgres_password "$(random)"
keep database_url "postgresql://nextstate:$(cat secrets/postgres_password)@postgres/nextstate"
keep admin_key "sk-ns-$(random)"
keep grafana_password "$(random)"
