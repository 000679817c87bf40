# shellcheck shell=bash
# To be sourced by the scripts that talk to the quickstart. start_quickstart runs
# the README's command and ends it with the script; its files are in $work.

config=examples/quickstart/Caddyfile
router=http://127.0.0.1:8080
metrics=http://127.0.0.1:2020/metrics

work=$(mktemp -d)
access_log=$work/access.log
server_log=$work/server.log
group=

# Caddy keeps its storage and its last config there.
export XDG_DATA_HOME=$work XDG_CONFIG_HOME=$work

trap 'stop_quickstart; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

say() { printf '    %s\n' "$*"; }

# die ends the script with a message and what the server has logged.
die() {
	printf 'FAILED: %s\n' "$*"
	if [[ -s $server_log ]]; then
		echo 'Last lines of the access log and the server log:'
		tail -n 20 "$access_log"
		tail -n 20 "$server_log"
	fi
	exit 1
}

taken_ports() {
	local port
	for port in $(grep -oE '^:[0-9]+|admin localhost:[0-9]+' "$config" | grep -oE '[0-9]+'); do
		if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
		fi
	done
}

start_quickstart() {
	local command taken deadline
	command=$(.ci/readme 'go run ./cmd/caddy')
	taken=$(taken_ports)
	[[ -z $taken ]] || die "somebody listens already on" $taken

	say "$command"
	set -m # a process group of its own, to end all of it
	bash -c "$command" >"$access_log" 2>"$server_log" &
	group=$!
	set +m
	deadline=$((SECONDS + 600)) # it may have to be compiled
	until curl -sf -o "$work/models" "$router/v1/models"; do
		kill -0 "$group" 2>/dev/null || die "the quickstart did not start"
		((SECONDS < deadline)) || die "the quickstart does not answer"
		sleep 0.2
	done
}

# stop_quickstart ends the quickstart, by force if it takes more than 10 s.
stop_quickstart() {
	[[ -n $group ]] || return 0
	kill -TERM -- "-$group" 2>/dev/null || true
	for _ in {1..100}; do
		kill -0 -- "-$group" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL -- "-$group" 2>/dev/null || true
	wait "$group" 2>/dev/null || true
	group=
}
