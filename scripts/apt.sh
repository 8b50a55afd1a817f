# shellcheck shell=bash
# Debian packages: only what is missing, from the machine's own package configuration. Sourced by scripts/setup.

# The oldest runsc that the driver is written for, by release date: Debian 12's own (20221219) cannot do what a sandbox needs.
readonly RUNSC_FLOOR=20240729

readonly BACKPORTS=bookworm-backports
readonly BACKPORTS_SOURCE=/etc/apt/sources.list.d/sandlot-backports.sources
readonly BACKPORTS_PIN=/etc/apt/preferences.d/sandlot

# ensure_packages NAME...: install those that are missing.
ensure_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} > 0)) || return 0
    need_apt "${missing[*]}"
    step "Debian packages: ${missing[*]}" install_packages "${missing[@]}"
}

# ensure_runsc: a runsc that is new enough, on PATH. An official release that is there already is left alone and used.
ensure_runsc() {
    ! runsc_is_new_enough "$(runsc_date)" || return 0
    need_apt runsc
    if [[ $(os_release VERSION_CODENAME) == bookworm ]] && ! runsc_is_new_enough "$(candidate_date runsc)"; then
        install_runsc_from_backports
    else
        step "gVisor (runsc)" install_packages runsc
    fi
    runsc_is_new_enough "$(runsc_date)" || die \
        "runsc on PATH is $(command -v runsc || echo missing) of $(runsc_date), and Sandlot needs $RUNSC_FLOOR or newer." \
        "If that is an old release that you installed by hand, remove it or update it," \
        "or install a newer official gVisor release on PATH: https://gvisor.dev/docs/user_guide/install/"
}

# ensure_postgresql: its programs, on which the tests make a cluster of their own. Debian's package makes one, and starts it, unless it is told
# not to: nobody asked for a server on this machine.
ensure_postgresql() {
    local missing quiet=/etc/postgresql-common/createcluster.d/sandlot.conf
    mapfile -t missing < <(missing_packages postgresql)
    ((${#missing[@]} > 0)) || return 0
    need_apt postgresql
    mkdir -p -- "${quiet%/*}"
    write_file "$quiet" <<<'create_main_cluster = false'
    step "PostgreSQL (for the tests)" install_packages postgresql
    rm -f -- "$quiet"
}

# The release date of the runsc on PATH, yyyymmdd, or 0 if there is none. Official builds call themselves
# release-20260817.0, Debian's 0.0~20240729.0-4.
runsc_date() {
    local version
    version=$(runsc --version 2>/dev/null) || version=
    first_date "$version"
}

candidate_date() {
    first_date "$(LC_ALL=C apt-cache policy "$1" | sed -n 's/^ *Candidate: //p')"
}

first_date() {
    [[ $1 =~ (20[0-9]{6}) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

runsc_is_new_enough() {
    (($1 >= RUNSC_FLOOR))
}

# Debian 12's own runsc is too old, its backports have a good one. The mirror is the one that the machine takes Debian 12
# from; what is written is taken back if it does not lead to a runsc.
install_runsc_from_backports() {
    local written=("$BACKPORTS_PIN") lists=all source
    # Who publishes a source, and that its "oldstable" is bookworm, is known only once its lists have been fetched.
    [[ -n $(debian_source bookworm) ]] || step "apt package lists" update_lists all
    if has_release "$BACKPORTS"; then
        backports_pin runsc | write_file "$BACKPORTS_PIN"
    else
        written+=("$BACKPORTS_SOURCE") lists=$BACKPORTS_SOURCE
        source=$(backports_source) || exit
        write_file "$BACKPORTS_SOURCE" <<<"$source"
        backports_pin runsc nothing-else | write_file "$BACKPORTS_PIN"
    fi
    step "apt package list of $BACKPORTS" update_lists "$lists" &&
        runsc_is_new_enough "$(candidate_date runsc)" &&
        step "gVisor (runsc) from $BACKPORTS" install_packages runsc && return
    rm -f -- "${written[@]}"
    die "runsc could not be installed from $BACKPORTS." \
        "The mirror that this machine takes Debian from may not carry it: add a source that does to /etc/apt/sources.list.d," \
        "or install an official gVisor release on PATH: https://gvisor.dev/docs/user_guide/install/"
}

# A deb822 source for BACKPORTS: the machine's own entry for Debian 12 (mirror, key, options) with another suite.
backports_source() {
    local uri suite file
    IFS='|' read -r uri suite file < <(debian_source bookworm) ||
        die "No apt source on this machine provides Debian 12 (bookworm) main." "Add one to /etc/apt/sources.list.d and run this again."
    printf '# Written by Sandlot (scripts/setup): Debian 12 has gVisor (runsc) only in its backports.\n'
    printf '# %s makes sure that nothing else is taken from here.\n' "$BACKPORTS_PIN"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$uri" "$BACKPORTS"
    if [[ $file == *.sources ]]; then
        deb822_options "$uri" "$suite" <"$file"
    else
        oneline_options "$uri" "$suite" <"$file"
    fi
}

# backports_pin runsc [nothing-else]: runsc comes from backports; if the source is ours, nothing else does. What an operator
# who has backports among their own sources takes from there is their business.
# 995 is above an APT::Default-Release (990) and below what would downgrade (1000).
backports_pin() {
    printf 'Explanation: Written by Sandlot (scripts/setup): gVisor (runsc) is taken from Debian backports.\n'
    printf 'Package: %s\nPin: release n=%s\nPin-Priority: 995\n' "$1" "$BACKPORTS"
    (($# > 1)) || return 0
    printf '\nExplanation: And nothing else is. Remove this part to use backports for more.\n'
    printf 'Package: *\nPin: release n=%s\nPin-Priority: -1\n' "$BACKPORTS"
}

# Debian's own source of a release, URI|suite as written|file: the first, or none. A third party's may carry the same suite.
debian_source() {
    targets | awk -F '|' -v OFS='|' -v release="$1" '($2 == release || $3 == release) && $5 == "Debian" { print $1, $2, $4; exit }'
}

# Does a source other than our own have this release?
has_release() {
    targets | awk -F '|' -v release="$1" -v own="$BACKPORTS_SOURCE" '$4 != own && ($2 == release || $3 == release) { found = 1 } END { exit !found }'
}

# The sources of binary packages that apt uses, one line each: URI|suite as written|codename if known|file|publisher if known.
targets() {
    # shellcheck disable=SC2016 # the variables are apt's
    apt-get indextargets --format '$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(SOURCESENTRY)|$(ORIGIN)|$(COMPONENT)|$(TARGET_OF)' 'Created-By: Packages' |
        awk -F '|' -v OFS='|' '$6 == "main" && $7 == "deb" { sub(/:[0-9]+$/, "", $4); print $1, $2, $3, $4, $5 }'
}

# deb822_options URI SUITE: of the stanza that names both, on stdin, the fields that say how to reach and trust it.
deb822_options() {
    awk -v uri="$1" -v suite="$2" '
        function flush(    i, n, words, has_uri, has_suite) {
            n = split(value["uris"], words, /[ \t\n]+/)
            for (i = 1; i <= n; i++) { sub(/\/+$/, "", words[i]); has_uri = has_uri || words[i] == uri }
            n = split(value["suites"], words, /[ \t\n]+/)
            for (i = 1; i <= n; i++) { sub(/\/+$/, "", words[i]); has_suite = has_suite || words[i] == suite }
            if (has_uri && has_suite) {
                for (i = 1; i <= fields; i++)
                    if (order[i] !~ /^(types|uris|suites|components|enabled|x-.*)$/) print order[i] ":" value[order[i]]
                found = 1
                exit
            }
            delete value; delete order; fields = 0
        }
        BEGIN { sub(/\/+$/, "", uri) }
        /^#/ { next }
        /^[ \t]*$/ { flush(); next }
        /^[ \t]/ { value[name] = value[name] "\n" $0; next }
        { name = tolower(substr($0, 1, index($0, ":") - 1)); order[++fields] = name; value[name] = substr($0, index($0, ":") + 1) }
        END { if (!found) flush() }
    '
}

# oneline_options URI SUITE: the same of a `deb [signed-by=... arch=amd64,arm64] URI SUITE main` line.
oneline_options() {
    awk -v uri="$1" -v suite="$2" '
        BEGIN { sub(/\/+$/, "", uri); long["arch"] = "architectures"; long["lang"] = "languages"; long["target"] = "targets" }
        $1 != "deb" { next }
        {
            options = ""
            if (match($0, /\[[^]]*\]/)) { options = substr($0, RSTART + 1, RLENGTH - 2); sub(/\[[^]]*\]/, "") }
            sub(/\/+$/, "", $2)
            if ($2 != uri || $3 != suite) next
            n = split(options, words)
            for (i = 1; i <= n; i++) {
                split(words[i], pair, "="); name = pair[1]; value = substr(words[i], length(name) + 2); gsub(/,/, " ", value)
                print (name in long ? long[name] : name) ": " value
            }
            exit
        }
    '
}

# write_file PATH: stdin into it, world-readable, in one step.
write_file() {
    local fresh
    fresh=$(mktemp "$1.XXXXXX")
    cat >"$fresh" && chmod 0644 -- "$fresh" && mv -f -- "$fresh" "$1"
}

missing_packages() {
    (($# > 0)) || return 0
    command -v dpkg-query >/dev/null || { printf '%s\n' "$@"; return 0; }
    # dpkg-query fails when it does not know one of the names, and prints the others all the same.
    comm -23 <(printf '%s\n' "$@" | sort) \
        <({ dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true; } | sed -n 's/^installed //p' | sort)
}

# need_apt WHAT: this must be a machine where WHAT can be installed.
need_apt() {
    local id version architecture
    id=$(os_release ID) version=$(os_release VERSION_ID)
    [[ $id == debian && ($version == 12 || $version == 13) ]] || die \
        "Missing, and only on Debian 12 and 13 installed by this: $1. This machine is $(os_release PRETTY_NAME)." \
        "Use one of these, or install by hand: ${PYTHON_PACKAGES[*]} ${SYSTEM_PACKAGES[*]}" \
        "and an official gVisor release: https://gvisor.dev/docs/user_guide/install/"
    architecture=$(dpkg --print-architecture)
    [[ $architecture == amd64 || $architecture == arm64 ]] || die \
        "gVisor exists for amd64 and arm64. This machine is $architecture." "Use a 64-bit x86 or ARM machine."
    is_root || die "Missing, and only root can install it: $1." "Run this once as root, for example: sudo scripts/setup"
}

os_release() (
    unset ID VERSION_ID VERSION_CODENAME PRETTY_NAME
    # shellcheck source=/dev/null
    [[ ! -r /etc/os-release ]] || source /etc/os-release
    printf '%s' "${!1-unknown}"
)

install_packages() {
    apt_get install "$@" || { update_lists all && apt_get install "$@"; }
}

# update_lists all|FILE: fetch the package lists, of all sources or of those in one file. Of all, a broken source of a third
# party is no reason to give up: whether a package can be had is seen when it is installed.
update_lists() {
    local only=() log tries status
    [[ $1 == all ]] || only=(-o "Dir::Etc::SourceList=$1" -o Dir::Etc::SourceParts=/dev/null -o APT::Get::List-Cleanup=0)
    # DPkg::Lock::Timeout does not cover the lists' own lock, which a fresh machine's first automatic update holds for a while.
    for ((tries = 0; tries < 60; tries++)); do
        status=0
        log=$(apt_get "${only[@]}" update 2>&1) || status=$?
        [[ $log == *"Could not get lock"* ]] || break
        sleep 5
    done
    printf '%s\n' "$log"
    [[ $1 == all ]] || return "$status"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get --quiet --yes --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}
