package gate

import (
	"testing"
)

type row struct{ command, family string }

func must(t *testing.T, o Options) *Gate {
	t.Helper()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

const workspace = "/home/user/project"

func judged(t *testing.T, want Decision, rows []row) {
	t.Helper()
	g := must(t, Options{})
	for _, r := range rows {
		v := g.judge(r.command, workspace)
		if v.Decision != want || v.Family != r.family {
			t.Errorf("%q: %s %q (%s; %s), want %s %q", r.command, v.Decision, v.Family, v.Reason, v.Part, want, r.family)
		}
		if (v.Reason == "") != (want == Allow) {
			t.Errorf("%q: %s with the reason %q", r.command, v.Decision, v.Reason)
		}
	}
}

// What deletes the root or a home is denied, however it is written.
func TestDeletingRootOrHomeIsDenied(t *testing.T) {
	var rows []row
	for _, command := range []string{
		`rm -rf /`, `rm -fr /`, `rm -rfv /`, `rm -vrf /`, `rm -i -rf /`, `rm --recursive --force /`, `rm --rec /`, `rm / -rf`, `rm -r -- /`, `rm -R /`,
		`r''m -rf /`, `'rm' '-rf' /`, `"rm" -"rf" "/"`, `\rm -rf /`, `r\m -r\f /`, `$'rm' -rf $'\x2f'`, `$'\162\155' -rf /`, `$"rm" -rf /`,
		"rm\\\n -rf /", "rm \\\n-rf \\\n/", `/bin/rm -rf /`, `/usr/bin/../bin/rm -rf /`, `./rm -rf /`,
		`rm -rf /*`, `rm -rf //`, `rm -rf /./`, `rm -rf /tmp/../`, `rm -rf /tmp/..`, `rm -rf ///*`, `rm -rf /[a-z]*`, `rm -rf /{bin,etc,usr}`, `rm -rf /u?r`, `rm -rf /us*`, `rm -rf /{,*}`, `rm -rf /.[!.]* /*`,
		`rm -rf ~`, `rm -rf ~/`, `rm -rf ~/*`, `rm -rf ~/.*`, `rm -rf $HOME`, `rm -rf "$HOME"`, `rm -rf ${HOME}`, `rm -rf ${HOME:?}`, `rm -rf "${HOME:-/x}"/*`, `rm -rf ~maria`, `rm -rf ~root`, `rm -rf /home`, `rm -rf /home/*`, `rm -rf /home/maria`, `rm -rf /home/maria/*`, `rm -rf /home/$USER`, `rm -rf /root`, `rm -rf ~/..`, `rm -rf ../../..`,
		`cd / && rm -rf *`, `cd /; rm -rf *`, `cd /; rm -rf ./*`, `pushd / && rm -rf *`, `cd ~ && rm -rf *`, `cd && rm -rf *`, `cd .. && cd .. && rm -rf *`, `(cd / && rm -rf *)`, `cd /tmp; cd ..; rm -rf *`, `if cd /; then rm -rf *; fi`, `cd / || exit; rm -rf *`, `cd /usr && rm -rf ../*`, `env -C / true; cd / ; rm -rf usr`,
		`a=/; rm -rf $a`, `a=rm; b=-rf; $a $b /`, `x="rm -rf /"; $x`, `x='-rf /'; rm $x`, `a=(rm -rf /); "${a[@]}"`, `a=/; b=$a; rm -rf "$b"`, `a=x; a=/; rm -rf $a`, `export a=/; rm -rf $a`, `declare a=/; rm -rf $a`, `f() { local d=/; rm -rf $d; }; f`, `: ${a:=/}; rm -rf $a`, `a=/xyz; rm -rf ${a%xyz}`, `a=xyz/; rm -rf ${a#xyz}`, `a=axb; rm -rf ${a//[ab]/}/../../../..; b=/q; rm -rf ${b/q/}`, `IFS=,; x=rm,-rf,/; $x`, `a=ab/; rm -rf ${a:2}`, `a=/; n=a; rm -rf ${!n}`, `printf -v a /; rm -rf $a`, `read a <<< /; rm -rf $a`, `a=RM; ${a,,} -rf /`, `set -- /; rm -rf $1`, `set -- x /; shift; rm -rf "$@"`, `echo /; rm -rf $_`,
		`if x; then d=/; else d=build; fi; rm -rf $d`, `d=build; [ -n "$x" ] && d=/; rm -rf $d`, `for d in build /; do rm -rf $d; done`, `for d in / a b c d e f g h i j; do rm -rf $d; done`, `while read d; do rm -rf $d; done <<< /`, `echo / | while read d; do rm -rf $d; done`, `case $x in a) d=/;; *) d=b;; esac; rm -rf $d`, `x=build; for i in 1 2; do rm -rf $x; x=/; done`, `d=/ && rm -rf $d`, `until false; do rm -rf /; done`,
		`$(echo rm) -rf /`, "`echo rm` -rf /", `rm -rf $(echo /)`, `rm -rf "$(printf /)"`, `$(printf 'r%s' m) -rf /`, `$(printf '\162\155') -rf /`, `$(for c in r m; do printf $c; done) -rf /`, `x=$(echo rm -rf /); $x`, `$(cat <<< rm) -rf /`, `f() { echo /; }; rm -rf $(f)`,
		`bash -c 'rm -rf /'`, `sh -c "rm -rf /"`, `bash -lc 'rm -rf /'`, `bash -x -e -c 'rm -rf /'`, `bash -o pipefail -c 'rm -rf /'`, `sh -c 'rm -rf "$1"' x /`, `sh -c '$0 -rf /' rm`, `bash --norc -c 'rm -rf /'`, `/bin/sh -c 'sh -c "rm -rf /"'`, `zsh -c 'rm -rf /'`, `busybox sh -c 'rm -rf /'`, `busybox rm -rf /`, `$SHELL -c 'rm -rf /'`, `$0 -c 'rm -rf /'`,
		`echo 'rm -rf /' | sh`, `printf 'rm -rf %s' / | bash`, `cat <<E | sh
rm -rf /
E`, "bash <<'E'\nrm -rf /\nE", "sh <<E\nrm -rf $HOME\nE", `bash <<< 'rm -rf /'`, `bash <(echo rm -rf /)`, `source <(echo rm -rf /)`, `. <(echo rm -rf /)`, `echo 'rm -rf /' | tee x | sh`, `echo 'rm -rf /' > x; sh x`, `echo 'rm -rf /' > x.sh; chmod +x x.sh; ./x.sh`, `echo 'rm -rf /' > x; . ./x`, `echo 'rm -rf /' | bash -s`, `echo 'rm -rf /' | bash /dev/stdin`, `sh < <(echo rm -rf /)`, `echo -n 'rm -rf /' | sudo bash`,
		`eval 'rm -rf /'`, `eval rm -rf /`, `eval "$(echo rm -rf /)"`, `eval eval rm -rf /`, `trap 'rm -rf /' EXIT`, `alias x='rm -rf /'
x`, `alias ls='rm -rf'
ls /`, `f() { rm -rf "$1"; }; f /`, `f() { rm "$@"; }; f -rf /`, `function f { rm -rf /; }; f`, `f() rm -rf /; f`, `x=build; trap 'rm -rf $x' EXIT; x=/`, `x=build; f() { rm -rf $x; }; trap f EXIT; x=/`, `trap 'rm -rf usr' EXIT; cd /`, `bash -c 'trap "rm -rf usr" EXIT; cd /'`, `(trap 'rm -rf usr' EXIT; cd /)`, `a=/; f() { local a=build; }; f; rm -rf $a`, `a=/; f() { typeset a; a=build; }; f; rm -rf "$a"`, `a=/; readonly a; a=build; rm -rf $a`, `declare -r a=/; a=x; rm -rf $a`, `a=/; read -t 0 a <<< build; rm -rf $a`, `a=/; read a < /nowhere; rm -rf $a`, `a=/; { a=build; } > /nowhere/x; rm -rf $a`, `a=/; a=build > /nowhere/x; rm -rf $a`, `a=/; f() { return; a=build; }; f; rm -rf $a`, `a=/; for i in 1; do break; a=build; done; rm -rf $a`, `cd /; cd nowhere || { true || exit; }; rm -rf *`, `cd /; cd nowhere || return; rm -rf *`, `cd /; set -e; cd nowhere && true; rm -rf *`, `cd /; set -e; ! cd nowhere; rm -rf *`, `cd /; for i in 1; do cd nowhere || continue; done; rm -rf *`, `cd /; cd nowhere || exit > /nowhere/x; rm -rf *`, `echo 'rm -rf /' > a; false && echo ls > a; sh a`, `f() { local IFS=x; }; f; a='y /'; rm -rf $a`, `command_not_found_handle() { rm -rf /; }; nosuch`, `env -C / rm -rf usr`, `sudo -D / rm -rf usr`, `env --chdir=/ sh -c 'rm -rf *'`, `env -C/ rm -rf ./*`, `tar -cf /dev/null --remove-files /`, `echo 'rm -rf /' | cat > a; sh a`, `(echo 'rm -rf /' > a); sh a`, `sh -c 'echo rm -rf / > a'; . ./a`, `f() { f() { rm -rf /; }; f; }; f`, `f() { rm -rf "$1"; f /; }; f build`, `f() { rm -rf $d; d=/; f; }; d=build; f`, `rm() { command rm "$@"; }; rm -rf /`, `coproc rm -rf /`, `mapfile -C 'rm -rf / #' -c 1 < x`, `hash -p /bin/rm ls; ls -rf /`, `ln -s /bin/rm x; ./x -rf /`, `cp /bin/rm /tmp/y && /tmp/y -rf /`,
		`sudo rm -rf /`, `sudo -u root -E rm -rf /`, `sudo -- rm -rf /`, `sudo A=b rm -rf /`, `env rm -rf /`, `env -i A=b rm -rf /`, `env -u X rm -rf /`, `env -S 'rm -rf /'`, `A=b rm -rf /`, `command rm -rf /`, `command -p rm -rf /`, `builtin command rm -rf /`, `nohup rm -rf / &`, `timeout 5 rm -rf /`, `timeout -k 1 -s KILL 5s rm -rf /`, `nice rm -rf /`, `nice -n 5 rm -rf /`, `nice -5 rm -rf /`, `ionice -c 3 rm -rf /`, `stdbuf -oL rm -rf /`, `stdbuf -o L rm -rf /`, `setsid rm -rf /`, `setsid -f rm -rf /`, `time rm -rf /`, `/usr/bin/time -f %e rm -rf /`, `exec rm -rf /`, `exec -a x rm -rf /`, `watch rm -rf /`, `watch -n 1 'rm -rf /'`, `strace -f -o x rm -rf /`, `flock /tmp/l rm -rf /`, `flock /tmp/l -c 'rm -rf /'`, `script -qc 'rm -rf /' x`, `su -c 'rm -rf /'`, `su root -c 'rm -rf /'`, `unshare -r rm -rf /`, `chroot / rm -rf /`, `taskset 1 rm -rf /`, `! rm -rf /`, `sudo env nice timeout 3 bash -c 'rm -rf /'`, `/lib64/ld-linux-x86-64.so.2 /bin/rm -rf /`,
		`echo / | xargs rm -rf`, `echo rm -rf / | xargs env`, `xargs -I{} rm -rf {} <<< /`, `echo / | xargs -n1 -I{} sh -c 'rm -rf {}'`, `printf '%s\n' / | xargs -d '\n' true; echo / | xargs -0 rm -rf`, `parallel rm -rf ::: /`, `parallel ::: 'rm -rf /'`,
		`find / -delete`, `find / -exec rm -rf {} \;`, `find / -exec rm -rf {} +`, `find / -execdir sh -c 'rm -rf "$1"' _ {} \;`, `find ~ -delete`, `find / -type f -delete`, `find / -name '*' -delete`, `find / | xargs rm -rf`, `find . -maxdepth 0 -exec rm -rf / \;`, `find / ! -name x -delete`,
		`true; rm -rf /`, `true && rm -rf /`, `false || rm -rf /`, `true | rm -rf /`, `rm -rf / &`, `(rm -rf /)`, `{ rm -rf /; }`, `if rm -rf /; then :; fi`, `while rm -rf /; do :; done`, `case x in x) rm -rf /;; esac`, `echo $(rm -rf /)`, `echo "$(rm -rf /)"`, "echo `rm -rf /`", `cat <(rm -rf /)`, `echo x > >(rm -rf /)`, `x=$(rm -rf /)`, `x[$(rm -rf /)]=1`, `echo $(( $(rm -rf /) ))`, `(( x = $(rm -rf /) ))`, `[[ $(rm -rf /) ]]`, `echo ${x:-$(rm -rf /)}`, `echo > $(rm -rf /)`, `cat <<E
$(rm -rf /)
E`, `case $(rm -rf /) in x) ;; esac`, `for x in $(rm -rf /); do :; done`, `let x=$(rm -rf /)`, `declare x=$(rm -rf /)`, `export x=$(rm -rf /)`, `a=($(rm -rf /))`, "echo hi # nothing\nrm -rf /", `echo "${a[$(rm -rf /)]}"`, `git status; git -c alias.x='!rm -rf /' x`, `git config alias.x '!rm -rf /'`, `git bisect run rm -rf /`, `git submodule foreach 'rm -rf /'`, `GIT_SSH_COMMAND='rm -rf /' git fetch`,
		`mv / /x`, `mv ~ /tmp/x`, `mv /* /tmp`, `rsync -a --delete empty/ /`, `rm -rf build /`, `rm -rf /usr/*`, `rm -rf /etc`, `rm -f /*`,
	} {
		rows = append(rows, row{command, Delete})
	}
	judged(t, Deny, rows)
}

// Disks, the machine's power, and processes without end.
func TestDisksPowerAndBombsAreDenied(t *testing.T) {
	judged(t, Deny, []row{
		{`dd if=/dev/zero of=/dev/sda`, Device}, {`dd of=/dev/sda if=x`, Device}, {`dd bs=1 if=x of=/dev/nvme0n1`, Device}, {`sudo dd of=/dev/mapper/root`, Device}, {`d=sda; dd of=/dev/$d`, Device},
		{`tee /dev/sda`, Device}, {`echo x | sudo tee -a /dev/sda1`, Device}, {`> /dev/nvme0n1`, Device}, {`cat x >/dev/sda`, Device}, {`cat x >> /dev/sd*`, Device}, {`cat x >| /dev/vda`, Device}, {`cat x &> /dev/sda`, Device}, {`cat x >& /dev/sda`, Device}, {`cat x 1<> /dev/sda`, Device}, {`cd /dev && cat x > sda`, Device}, {`echo x > /dev/../dev//sda`, Device}, {`cp x /dev/sda`, Device}, {`install x /dev/sda`, Device}, {`cp -t /dev/sda x`, Device},
		{`mkfs /dev/sda`, Device}, {`mkfs.ext4 -F /dev/sda1`, Device}, {`mkfs -t ext4 /dev/sda`, Device}, {`wipefs -a /dev/sda`, Device}, {`shred /dev/sda`, Device}, {`truncate -s 0 /dev/sda`, Device}, {`fdisk /dev/sda`, Device}, {`parted -s /dev/sda mklabel gpt`, Device}, {`blkdiscard /dev/nvme0n1`, Device}, {`mkswap /dev/sdb`, Device}, {`find . -fprint /dev/sda`, Device}, {`curl -o /dev/sda http://x`, Device}, {`exec 3> /dev/sda`, Device},
		{`shutdown`, Power}, {`shutdown -h now`, Power}, {`reboot`, Power}, {`sudo reboot -f`, Power}, {`/sbin/poweroff`, Power}, {`halt`, Power}, {`init 0`, Power}, {`telinit 6`, Power}, {`systemctl halt`, Power}, {`systemctl --force reboot`, Power}, {`systemctl isolate poweroff.target`, Power}, {`loginctl poweroff`, Power}, {`busybox poweroff`, Power}, {`busybox init 0`, Power}, {`echo b > /proc/sysrq-trigger`, Power}, {`echo b | sudo tee /proc/sysrq-trigger`, Power}, {`true && reboot`, Power}, {`sh -c reboot`, Power}, {`kexec -e`, Power}, {`init $((0))`, Power}, {`s=reboot; $s`, Power}, {`echo mem > /sys/power/state`, Power},
		{`:(){ :|:& };:`, Bomb}, {`: () { : | : & } ; :`, Bomb}, {`bomb() { bomb | bomb & }; bomb`, Bomb}, {"bomb() {\n  bomb |\n  bomb &\n}\nbomb", Bomb}, {`f(){ f & f & }; f`, Bomb}, {`f(){ f|f; }; f`, Bomb}, {`f(){ g|g& }; g(){ f|f& }; f`, Bomb}, {`function f { (f &); f; }; f`, Bomb}, {`bash -c ':(){ :|:& };:'`, Bomb}, {`f(){ "$0"; f & }; f`, Bomb}, {`f(){ eval 'f & f'; }; f`, Bomb}, {`a=f; f(){ $a & $a & }; f`, Bomb},
	})
}
