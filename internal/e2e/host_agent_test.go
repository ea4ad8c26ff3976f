package e2e

import (
	"os"
	"strings"
	"testing"
)

// An agent on the host backend is connected, and sealed off from Ravi: with its key it can do what the key allows; when
// it puts its key away, forks twice and looks for another way in, there is none.
func TestAgentOnTheHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: without root a sealed host sandbox needs unprivileged user namespaces")
	}
	w := newWorld(t)
	r := plain(t)
	w.ravi("agents", "create", "anna").want(0)
	w.ravi("sessions", "create", "--agent", "anna", "--name", "web").want(0)
	w.ravi("sessions", "send", "web", "the page is blank").want(0)
	address := w.withDaemon()
	run := w.run(r, "--backend", "host", "--session", "web", "--connect", "read", "--", "sh", "-c", `
		echo "== with the key"; ravi sessions transcript web
		echo "== without"
		unset RAVI_CONTEXT_KEY RAVI_GATEWAY_URL
		export RAVI_HOME=`+w.home+` HOME=`+w.user+`
		try() { echo "try $*"; if timeout 120 "$@"; then echo "WENT THROUGH: $*"; fi; }
		cat > attack.sh <<-'END'
			try() { echo "try $*"; if timeout 120 "$@"; then echo "WENT THROUGH: $*"; fi; }
			try `+program+` sessions ls
			try `+program+` tasks create forged
			try `+program+` daemon status
			try `+program+` context issue --allow 'read:*'
			try sh -c 'echo {} | `+program+` run-owner 3<&0'
			try cat `+w.home+`/ravi.db
			try cat `+w.home+`/audit.head
			try ls `+w.home+`/cli-gateway.sock
			try curl -sf --unix-socket `+w.home+`/cli-gateway.sock http://localhost/api/v1/sessions/ls -d {} -H 'Content-Type: application/json'
			try curl -sf http://`+address+`/api/v1/sessions/ls -d {} -H 'Content-Type: application/json'
			try sh -c 'grep -l "daemo[n].run" /proc/[0-9]*/cmdline 2>/dev/null | grep -v self | grep .'
			try sh -c 'umount `+w.home+` && ls `+w.home+`/ravi.db'
			try sh -c 'nsenter -t 1 -m ls `+w.home+`/ravi.db'
			try sh -c 'for p in /proc/[0-9]*; do cat $p/root`+w.home+`/ravi.db 2>/dev/null | grep . && exit 0; done; exit 1'
		END
		(setsid sh -c '(setsid sh attack.sh </dev/null >attack.log 2>&1; echo over >>attack.log) &' &)
		i=0; while ! grep -q '^over$' attack.log 2>/dev/null && [ $i -lt 6000 ]; do sleep 0.2; i=$((i+1)); done
		cat attack.log; rm -f attack.sh attack.log
	`).want(0)
	if !strings.Contains(run.stdout, "the page is blank") {
		t.Errorf("its key is of no use:\n%s\n%s", short(run.stdout), short(run.stderr))
	}
	if n := strings.Count(run.stdout, "\ntry "); n != 14 || !strings.Contains(run.stdout, "\nover\n") {
		t.Errorf("%d attempts were made:\n%s", n, run.stdout)
	}
	for line := range strings.Lines(run.stdout) {
		if strings.Contains(line, "WENT THROUGH") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if tasks := w.ravi("tasks", "ls").want(0).stdout; strings.Contains(tasks, "forged") {
		t.Errorf("a task was forged:\n%s", tasks)
	}
}
