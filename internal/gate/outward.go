package gate

import (
	"net/url"
	"slices"
	"strings"
)

func registerOutward() {
	register((*call).remote, "ssh", "scp", "sftp", "telnet", "nc", "ncat", "netcat", "socat", "mosh", "rsh", "rlogin", "ansible", "ansible-playbook", "pssh", "pdsh", "fab", "winrm", "psexec", "sshpass", "autossh", "ftp", "lftp")
	register((*call).curl, "curl", "wget", "http", "https", "httpie", "xh", "curlie", "aria2c", "fetch")
	register((*call).packages, "npm", "pnpm", "yarn", "bun", "npx", "bunx", "uvx", "pipx", "pip", "pip2", "pip3", "pip3.12", "apt", "apt-get", "aptitude", "dpkg", "yum", "dnf", "microdnf", "rpm", "apk", "pacman", "zypper", "brew", "snap", "flatpak", "port", "nix-env", "gem", "bundle", "cargo", "go", "rustup", "composer", "dotnet", "mvn", "gradle", "lerna", "easy_install", "cpan", "cpanm", "luarocks", "opam", "cabal", "stack", "helm", "code", "deno-install", "corepack", "nvm", "sdk", "pkg", "emerge", "xbps-install", "tlmgr", "winget", "choco", "scoop")
	register((*call).publishes, "twine", "goreleaser", "semantic-release", "vsce", "ovsx", "flyctl", "fly", "vercel", "netlify", "wrangler", "firebase", "heroku", "surge", "gh", "glab", "hub", "sendmail", "mail", "mailx", "mutt", "msmtp", "swaks", "terraform", "tofu", "pulumi", "kubectl", "oc", "aws", "gcloud", "gsutil", "az", "doctl", "s3cmd", "rclone", "serverless", "cdk", "eb", "railway", "render", "np", "release-it", "changeset")
	register((*call).containers, "docker", "podman", "nerdctl", "buildah", "skopeo", "docker-compose")
	register((*call).secrets, "gpg", "gpg2", "pass", "security", "secret-tool", "vault", "op", "bw", "lpass", "keyring", "kwallet-query", "passwd", "chpasswd", "ssh-add", "ssh-copy-id", "unshadow", "age-keygen", "sops", "ssh-keygen")
}

// remote runs or copies something on another machine.
func (c *call) remote() {
	c.st.out.add(hole)
	c.st.out.loaded = true
	if len(c.args) == 0 || c.has("-V", "--version", "--help", "-h") && len(c.args) == 1 {
		return
	}
	if c.name == "ftp" || c.name == "nc" || c.name == "ncat" || c.name == "netcat" {
		// A look whether a port of this machine is open is a test's daily work.
		if c.flag("z", "") && slices.ContainsFunc(c.args, localHost) && !c.flag("ec", "exec") {
			return
		}
	}
	c.ask(Remote, "it runs or copies something on another machine, or lets another machine in")
}

func localHost(h string) bool {
	return slices.Contains([]string{"localhost", "127.0.0.1", "::1", "0.0.0.0"}, h)
}

// local says that an address is on this machine.
func local(address string) bool {
	if strings.HasPrefix(address, ":") { // httpie's :8080/path
		return true
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(plain.Replace(address))
	return err == nil && localHost(u.Hostname())
}

// curl loads something, or changes something elsewhere.
func (c *call) curl() {
	c.st.out.add(hole)
	if len(c.args) == 1 && c.has("--version", "--help", "-V", "-h") {
		return
	}
	c.st.out.loaded = true
	changes := false
	var addresses []string
	for i := 0; i < len(c.args); i++ {
		a := c.args[i]
		name, rest, joined := strings.Cut(a, "=")
		next := ""
		if i+1 < len(c.args) {
			next = c.args[i+1]
		}
		method := ""
		switch {
		case name == "-X" || name == "--request" || name == "--method":
			method = next
			if joined {
				method = rest
			} else {
				i++
			}
		case strings.HasPrefix(a, "-X"):
			method = a[2:]
		case slices.Contains([]string{"-d", "-F", "-T", "--form", "--form-string", "--upload-file", "--json", "--post-data", "--post-file", "--body-data", "--body-file", "--mail-from", "--mail-rcpt"}, name) || strings.HasPrefix(name, "--data") || strings.HasPrefix(a, "-d") || strings.HasPrefix(a, "-F") || strings.HasPrefix(a, "-T") && c.name == "curl":
			changes = changes || c.name != "wget" || strings.HasPrefix(a, "--")
			if !joined && (len(a) == 2 || strings.HasPrefix(a, "--")) {
				i++
			}
		case slices.Contains([]string{"-o", "-O", "--output", "-H", "--header", "-u", "--user", "-A", "-e", "-b", "-c", "-m", "--max-time", "--connect-timeout", "--retry", "-w", "--write-out", "--user-agent", "--cookie", "--cacert", "--output-document", "-P", "--directory-prefix", "--retry-delay", "-K", "--config", "--resolve", "--url"}, a):
			if a == "--url" {
				addresses = append(addresses, next)
			}
			if a == "-K" || a == "--config" {
				changes = true // what it says is in a file
			}
			if target := next; strings.Contains(a, "output") || a == "-o" || a == "-O" && c.name == "wget" {
				c.opened(c.st, target, true)
				if c.name != "http" {
					for _, p := range c.st.resolve(target) {
						c.st.files[p] = input{text: hole, loaded: true}
					}
				}
			}
			if a == "-O" && c.name != "wget" {
				c.savedAs(next)
			} else {
				i++
			}
		case strings.HasPrefix(a, "-"):
			if strings.Contains(a, "O") && !strings.HasPrefix(a, "--") {
				c.savedAs(next)
			}
		case (c.name == "http" || c.name == "https" || c.name == "xh") && slices.Contains([]string{"POST", "PUT", "PATCH", "DELETE"}, a):
			method = a
		case (c.name == "http" || c.name == "https" || c.name == "xh") && len(addresses) > 0 && strings.ContainsAny(a, "=") && !strings.Contains(a, "=="):
			changes = true
		default:
			addresses = append(addresses, a)
		}
		switch strings.ToUpper(method) {
		case "", "GET", "HEAD", "OPTIONS":
		default:
			changes = true
		}
	}
	if c.name == "wget" {
		for _, a := range addresses {
			c.savedAs(a)
		}
	}
	if changes && (len(addresses) == 0 || slices.ContainsFunc(addresses, func(a string) bool { return !local(a) })) {
		c.ask(Fetch, "it sends something to another machine, or changes something there")
	}
}

// savedAs notes that a file of an address's name comes from the network.
func (c *call) savedAs(address string) {
	address, _, _ = strings.Cut(address, "?")
	if name := base(address); name != "." && name != "/" {
		for _, p := range c.st.resolve(name) {
			c.st.files[p] = input{text: hole, loaded: true}
		}
	}
}

// installs are the words by which package programs install what is named after them.
var installs = map[string][]string{
	"npm": {"install", "i", "add", "in", "isntall"}, "pnpm": {"add", "install", "i", "dlx"}, "yarn": {"add", "global", "dlx"}, "bun": {"add", "install", "i", "x"}, "pip": {"install", "download"}, "pipx": {"install", "run", "inject"},
	"apt": {"install", "full-upgrade", "upgrade", "dist-upgrade", "remove", "purge", "autoremove"}, "yum": {"install", "update", "upgrade", "remove", "erase", "localinstall", "groupinstall"}, "apk": {"add", "del", "upgrade"},
	"brew": {"install", "upgrade", "uninstall", "tap", "reinstall"}, "gem": {"install", "update", "uninstall"}, "cargo": {"install", "add"}, "go": {"install", "get"}, "rustup": {"install", "toolchain", "update"},
	"composer": {"require", "global"}, "dotnet": {"add", "tool"}, "snap": {"install", "remove", "refresh"}, "flatpak": {"install", "uninstall"}, "uv": {"add", "tool"}, "poetry": {"add"}, "pipenv": {"install"}, "pdm": {"add"}, "conda": {"install", "create", "remove"}, "helm": {"install", "upgrade", "uninstall", "push"},
	"code": {"--install-extension"}, "luarocks": {"install"}, "opam": {"install"}, "cabal": {"install"}, "stack": {"install"}, "zypper": {"install", "in", "remove", "rm", "update", "up"}, "bundle": {"add"}, "nvm": {"install"}, "pkg": {"install", "delete"}, "tlmgr": {"install"}, "winget": {"install"}, "choco": {"install"}, "scoop": {"install"}, "port": {"install"}, "sdk": {"install"}, "cpan": {}, "cpanm": {},
}

var sameAs = map[string]string{"pip2": "pip", "pip3": "pip", "pip3.12": "pip", "apt-get": "apt", "aptitude": "apt", "dnf": "yum", "microdnf": "yum", "mamba": "conda", "micromamba": "conda"}

// packages judges package programs: publishing always asks, installing what is named asks, and installing what the
// project itself lists does not.
func (c *call) packages() {
	c.st.out.add(hole)
	name := c.name
	if other, ok := sameAs[name]; ok {
		name = other
	}
	ops := c.operands()
	if name == "uv" && len(ops) > 0 && ops[0] == "pip" {
		name, ops = "pip", ops[1:]
	}
	first := ""
	if len(ops) > 0 {
		first = ops[0]
	}
	second := ""
	if len(ops) > 1 {
		second = ops[1]
	}
	switch {
	case c.has("--help", "--dry-run", "--version") && name != "apt":
	case slices.Contains([]string{"publish", "unpublish", "deprecate", "deploy", "nuget-push", "upload", "yank", "owner"}, first) || name == "npm" && (second == "publish" || slices.Contains([]string{"access", "dist-tag", "owner"}, first)),
		name == "gem" && (first == "push" || first == "yank"), name == "helm" && first == "push", name == "dotnet" && c.has("push"), name == "mvn" && slices.ContainsFunc(ops, func(o string) bool { return strings.HasPrefix(o, "deploy") || strings.HasPrefix(o, "release") }), name == "gradle" && slices.ContainsFunc(ops, func(o string) bool { return strings.Contains(strings.ToLower(o), "publish") }):
		c.ask(Publish, "it publishes a package")
	case slices.Contains([]string{"login", "adduser", "token", "logout", "signin"}, first):
		c.ask(Credential, "it is about keys or tokens")
	case name == "npx" || name == "bunx" || name == "uvx" || (name == "npm" || name == "bun") && (first == "exec" || first == "x"):
		c.npx(ops)
	case slices.Contains([]string{"dpkg", "rpm", "pacman", "nix-env", "emerge", "easy_install", "xbps-install", "cpan", "cpanm"}, name):
		if c.flag("iUSeRr", "install") && !c.flag("Qql", "query") || name == "easy_install" || strings.HasPrefix(name, "cpan") && len(ops) > 0 || name == "emerge" || name == "xbps-install" {
			c.ask(Install, "it installs or removes programs")
		}
	case name == "go" && first == "run" && strings.Contains(second, "@"):
		c.ask(Install, "it loads and runs a program")
	case name == "apt" && slices.Contains(installs["apt"], first), name == "yum" && slices.Contains(installs["yum"], first):
		c.ask(Install, "it installs or removes programs")
	case slices.Contains(installs[name], first) && (second != "" || c.flag("g", "global")) && !c.ofProject(name, ops[1:]):
		c.ask(Install, "it installs programs of others")
	case first == "exec" && (name == "bundle" || name == "npm" || name == "pnpm" || name == "yarn"):
		c.embedded(ops[1:], Deny)
		if name == "bundle" {
			c.sub(ops[1:])
		}
	}
	for i, a := range c.args {
		if (a == "-c" || a == "--call" || a == "-exec" || a == "-toolexec") && i+1 < len(c.args) && (name == "npm" || name == "npx" || name == "go") {
			c.deeper(func() { c.judge.shell(c.st.child(), c.args[i+1]) })
		}
	}
	if name == "go" || name == "cargo" {
		c.embedded(c.args, Ask)
	}
}

// npx runs a program of a package, which it loads if it is not there.
func (c *call) npx(ops []string) {
	named := slices.ContainsFunc(ops, func(o string) bool { return strings.LastIndexByte(o, '@') > 0 })
	if c.name == "bunx" || c.name == "uvx" || named || c.has("-y", "--yes", "-p") || slices.ContainsFunc(c.args, func(a string) bool { return strings.HasPrefix(a, "--package") }) {
		c.ask(Install, "it loads and runs a program of others")
	}
	if c.name == "npx" || c.name == "bunx" {
		c.embedded(ops, Deny)
	}
}

// ofProject says that what is installed is the project itself, or what its own files list.
func (c *call) ofProject(name string, ops []string) bool {
	if c.flag("g", "global") && name != "pip" {
		return false
	}
	for _, o := range ops {
		if o != "." && !strings.HasPrefix(o, "./") && !strings.HasPrefix(o, ".[") && !c.valueOf(o, "-r", "-e", "-c", "--requirement", "--editable", "--constraint", "--prefix", "-C", "-w", "--workspace", "-t", "--target") {
			return false
		}
	}
	return true
}

// valueOf says that an argument is the value of one of those options.
func (c *call) valueOf(arg string, options ...string) bool {
	for i, a := range c.args {
		if a == arg && i > 0 && slices.Contains(options, c.args[i-1]) {
			return !strings.Contains(arg, "://")
		}
	}
	return false
}

// publishes is for programs of services: what they show is ordinary, what they change asks.
func (c *call) publishes() {
	c.st.out.add(hole)
	if len(c.args) == 0 || c.has("--help", "--version", "--dry-run") {
		return
	}
	changing := []string{"create", "delete", "destroy", "apply", "upload", "publish", "deploy", "release", "merge", "close", "edit", "comment", "push", "cp", "sync", "mv", "rm", "rb", "mb", "put", "set", "update", "patch", "scale", "drain", "launch", "up", "import", "move", "copy", "copyto", "replace", "rollout", "run", "start", "stop", "terminate", "review", "ready", "fork", "sync-fork", "archive", "rename", "transfer", "up-from", "--prod", "-X", "--method", "-f", "-F", "invoke", "remove"}
	secret := []string{"token", "login", "get-login-password", "print-access-token", "get-access-token", "get-secret-value", "secrets", "secret", "secretsmanager", "auth", "config", "sts", "configure", "ssh-key", "gpg-key", "logout"}
	switch {
	case slices.Contains([]string{"kubectl", "oc"}, c.name) && c.has("exec", "cp", "attach", "port-forward", "debug", "rsh"):
		c.ask(Remote, "it runs something on another machine")
	case c.has(secret...) && !c.has("status"):
		c.ask(Credential, "it is about keys or tokens")
	case slices.Contains([]string{"twine", "goreleaser", "semantic-release", "vsce", "ovsx", "surge", "np", "release-it", "sendmail", "mail", "mailx", "mutt", "msmtp", "swaks"}, c.name):
		if !c.has("check", "list", "ls", "package", "build", "status") {
			c.ask(Publish, "others get to see what it sends")
		}
	case c.has(changing...) || slices.ContainsFunc(c.args, func(a string) bool {
		return slices.ContainsFunc([]string{"create-", "delete-", "put-", "update-", "run-", "terminate-", "start-", "stop-", "send-"}, func(p string) bool { return strings.HasPrefix(a, p) })
	}):
		c.ask(Publish, "it changes something at a service, where others see it")
	case c.has("ssh", "exec", "ssm"):
		c.ask(Remote, "it runs something on another machine")
	}
}

// containers judges container programs: what publishes, and what has the host within reach.
func (c *call) containers() {
	c.st.out.add(hole)
	ops := c.operands()
	switch {
	case len(ops) == 0:
	case ops[0] == "push" || len(ops) > 1 && ops[1] == "push" || c.has("--push") || ops[0] == "copy" && c.name == "skopeo":
		c.ask(Publish, "it publishes an image")
	case ops[0] == "login":
		c.ask(Credential, "it is about keys or tokens")
	case c.has("prune") && c.has("system", "volume"):
		c.ask(Delete, "it deletes what containers have stored")
	case ops[0] == "run" || ops[0] == "create" || ops[0] == "exec":
		for i, a := range c.args {
			rest, joined := strings.CutPrefix(a, "-v")
			if i > 0 && slices.Contains([]string{"-v", "--volume", "--mount"}, c.args[i-1]) {
				rest, joined = a, true
			} else if r, ok := strings.CutPrefix(a, "--volume="); ok {
				rest, joined = r, true
			}
			from, _, _ := strings.Cut(rest, ":")
			if joined && (strings.HasPrefix(from, "/") || strings.HasPrefix(from, homeDir)) && c.judgeTarget(clean(from)) == disaster || strings.Contains(a, "docker.sock") {
				c.ask(System, "it gives a container the root, a home, or the machine's own containers")
			}
		}
		if c.has("--privileged") {
			c.ask(System, "it gives a container all rights")
		}
		c.embedded(c.args, Ask)
	}
	if c.has("-H", "--host", "--context") {
		c.ask(Remote, "it runs something on another machine")
	}
}

// secrets is for programs that keep keys, and give them out.
func (c *call) secrets() {
	c.st.out.add(hole)
	switch c.name {
	case "gpg", "gpg2":
		if !slices.ContainsFunc(c.args, func(a string) bool {
			return strings.HasPrefix(a, "--export-secret") || strings.HasPrefix(a, "--delete") || a == "--decrypt" || a == "-d" || a == "--import"
		}) {
			return
		}
	case "ssh-keygen":
		if !c.has("-y", "-p", "-e") {
			return
		}
	case "ssh-add":
		if c.flag("lL", "") {
			return
		}
	}
	if len(c.args) == 1 && c.has("--help", "--version") {
		return
	}
	c.ask(Credential, "it is about keys or tokens")
}
