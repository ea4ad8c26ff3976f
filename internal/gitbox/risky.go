package gitbox

import (
	"path"
	"strings"
)

// RiskyPath is a changed path that something on the operator's machine will execute or obey, often without being asked.
type RiskyPath struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// riskyDirs and riskyFiles are by lower-cased name, at any depth: tools look in sub-directories too.
var riskyDirs = map[string]string{
	".github/workflows": "CI runs it", ".github/actions": "CI runs it", ".gitlab": "CI runs it", ".circleci": "CI runs it", ".buildkite": "CI runs it",
	".woodpecker": "CI runs it", ".forgejo": "CI runs it", ".gitea": "CI runs it", ".teamcity": "CI runs it", ".ci": "CI runs it",
	".husky": "git hooks run it", ".githooks": "git hooks run it", ".lefthook": "git hooks run it",
	".vscode": "the editor runs its tasks", ".idea": "the editor runs its tasks", ".zed": "the editor runs its tasks", ".fleet": "the editor runs its tasks",
	".devcontainer": "the editor builds and runs it", ".nvim": "the editor runs it",
	".claude": "agents obey it", ".cursor": "agents obey it", ".codex": "agents obey it", ".gemini": "agents obey it", ".windsurf": "agents obey it",
	".agents": "agents obey it", ".continue": "agents obey it", ".aider": "agents obey it", ".kiro": "agents obey it", ".ravi": "agents obey it",
	".cargo": "cargo obeys it", ".mvn": "maven obeys it", ".yarn": "yarn runs it", ".bundle": "bundler obeys it", ".direnv": "direnv runs it",
}

var riskyFiles = map[string]string{
	".gitlab-ci.yml": "CI runs it", "jenkinsfile": "CI runs it", ".travis.yml": "CI runs it", "azure-pipelines.yml": "CI runs it", "bitbucket-pipelines.yml": "CI runs it",
	".drone.yml": "CI runs it", "appveyor.yml": "CI runs it", ".cirrus.yml": "CI runs it", "action.yml": "CI runs it", "action.yaml": "CI runs it",
	".envrc": "direnv runs it", ".env": "shells and tools load it", ".tool-versions": "version managers obey it", "mise.toml": "mise runs it", ".mise.toml": "mise runs it",
	".pre-commit-config.yaml": "git hooks run it", "lefthook.yml": "git hooks run it", ".lefthook.yml": "git hooks run it", ".overcommit.yml": "git hooks run it",
	".gitattributes": "it selects filters, diff and merge programs", ".gitmodules": "it names repositories to fetch", ".gitconfig": "it may be included in git's settings", ".lfsconfig": "it names where LFS content comes from",
	".npmrc": "npm obeys it", ".yarnrc": "yarn runs it", ".yarnrc.yml": "yarn runs it", ".pnpmfile.cjs": "pnpm runs it", "package.json": "npm runs its scripts", "binding.gyp": "npm builds and runs it",
	"setup.py": "pip runs it", "setup.cfg": "pip obeys it", "pyproject.toml": "build tools run what it names", "conftest.py": "pytest runs it", "tox.ini": "tox runs it", "noxfile.py": "nox runs it", "sitecustomize.py": "python runs it",
	"build.rs": "cargo runs it", "makefile": "make runs it", "gnumakefile": "make runs it", "justfile": "just runs it", "taskfile.yml": "task runs it", "rakefile": "rake runs it",
	"gemfile": "bundler runs it", "composer.json": "composer runs its scripts", "build.gradle": "gradle runs it", "build.gradle.kts": "gradle runs it", "settings.gradle": "gradle runs it", "gradlew": "it is run to build", "pom.xml": "maven runs what it names",
	"dockerfile": "builds run it", "docker-compose.yml": "it starts containers", "docker-compose.yaml": "it starts containers", "compose.yml": "it starts containers", "compose.yaml": "it starts containers", "vagrantfile": "vagrant runs it", "flake.nix": "nix runs it", "shell.nix": "nix runs it",
	"agents.md": "agents obey it", "agents.override.md": "agents obey it", "claude.md": "agents obey it", "claude.local.md": "agents obey it", "gemini.md": "agents obey it", ".cursorrules": "agents obey it", ".windsurfrules": "agents obey it", ".clinerules": "agents obey it", ".mcp.json": "agents start what it names", "copilot-instructions.md": "agents obey it",
	".exrc": "the editor runs it", ".vimrc": "the editor runs it", ".nvimrc": "the editor runs it", ".nvim.lua": "the editor runs it", ".dir-locals.el": "the editor runs it", ".emacs": "the editor runs it", ".editorconfig": "editors obey it", ".gdbinit": "gdb runs it", ".lldbinit": "lldb runs it",
	".bashrc": "shells run it", ".profile": "shells run it", ".bash_profile": "shells run it", ".zshrc": "shells run it",
}

// risky says why a change deserves a question; an empty string means that it does not. target is where a new link leads.
func risky(c PathChange, target string) string {
	name := strings.ToLower(c.Path)
	base := path.Base(name)
	if why := riskyFiles[base]; why != "" {
		return why
	}
	for dir, why := range riskyDirs {
		if strings.HasPrefix(name, dir+"/") || strings.Contains(name, "/"+dir+"/") || name == dir || strings.HasSuffix(name, "/"+dir) {
			return why
		}
	}
	switch {
	case strings.HasSuffix(base, ".code-workspace") || strings.HasSuffix(base, ".sublime-project"):
		return "the editor runs its tasks"
	case strings.HasPrefix(base, "makefile.") || strings.HasSuffix(base, ".mk"):
		return "make runs it"
	case strings.HasPrefix(base, ".git") && base != ".gitignore" && base != ".gitkeep":
		return "git or its tools obey it"
	case strings.HasPrefix(base, ".env."):
		return "shells and tools load it"
	case c.NewMode == "120000" && leadsOut(c.Path, target):
		return "a link that leads out of the work tree, or into .git"
	case c.NewMode == "100755" && c.OldMode != "100755":
		return "it becomes executable"
	}
	return ""
}

// leadsOut tells whether a link at name leads out of its tree. Links on the way are not followed, so a link to a link is
// judged by its own text.
func leadsOut(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return true
	}
	to := path.Join(path.Dir("/x/"+name), target) // Join also drops what climbs above the root
	if !strings.HasPrefix(to+"/", "/x/") {
		return true
	}
	for p := range strings.SplitSeq(strings.TrimPrefix(to, "/x"), "/") {
		if dotGitLike(p) {
			return true
		}
	}
	return false
}
