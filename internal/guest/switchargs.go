package guest

import (
	"fmt"
	"strings"
)

// parseSudo reads the options of sudo that scripts use. One that it does not
// know is refused: to leave it out could mean the opposite of what was asked.
func parseSudo(args []string) (switchCall, error) {
	c := switchCall{user: "root"}
	long := map[string]string{
		"non-interactive": "n", "preserve-env": "E", "set-home": "H", "stdin": "S", "reset-timestamp": "k",
		"remove-timestamp": "K", "validate": "v", "login": "i", "shell": "s", "askpass": "A", "background": "",
		"user": "u", "group": "g", "prompt": "p", "chdir": "D", "close-from": "C", "preserve-groups": "P",
	}
	var i int
	for i = 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			i++
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			break
		}
		letters, value, hasValue := arg[1:], "", false
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			name, value, hasValue = strings.Cut(name, "=")
			letter, known := long[name]
			if !known || letter == "" {
				return c, fmt.Errorf("option %q is not supported in a sandbox", arg)
			}
			letters = letter
		}
		for len(letters) > 0 {
			letter := letters[:1]
			letters = letters[1:]
			if strings.Contains("ugpDC", letter) {
				switch {
				case hasValue:
				case letters != "":
					value, letters = letters, ""
				case i+1 < len(args):
					i++
					value = args[i]
				default:
					return c, fmt.Errorf("option -%s needs a value", letter)
				}
			}
			switch letter {
			case "n", "H", "S", "A", "p", "C", "P":
				// There is no password to ask for, and the home is always the user's.
			case "k", "K", "v":
				c.nothing = true
			case "E":
				// --preserve-env=LIST names what the sandbox mostly keeps anyway;
				// keeping all of it is a superset.
				c.keepEnv = true
			case "i":
				c.login = true
			case "s":
				c.shell = true
			case "u":
				c.user = value
			case "g":
				c.group = value
			case "D":
				c.dir = value
			default:
				return c, fmt.Errorf("option -%s is not supported in a sandbox", letter)
			}
		}
	}
	rest := args[i:]
	for len(rest) > 0 && isAssignment(rest[0]) {
		c.vars = append(c.vars, rest[0])
		rest = rest[1:]
	}
	c.command = rest
	if len(rest) > 0 || c.login || c.shell {
		c.nothing = false // -k with a command only forgets the password first
		return c, nil
	}
	if !c.nothing {
		return c, fmt.Errorf("no command is given; usage: sudo [-nEHSki] [-u USER] [VAR=value] COMMAND [ARGUMENT…]")
	}
	return c, nil
}

// isAssignment says whether a word is VAR=value.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	if !ok || name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for _, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return false
		}
	}
	return true
}

// parseSu reads the options of su.
func parseSu(args []string) (switchCall, error) {
	c := switchCall{user: "root", shell: true, su: true}
	var command []string
	var names []string
	value := func(i *int, letters *string) (string, error) {
		if *letters != "" {
			v := *letters
			*letters = ""
			return v, nil
		}
		if *i+1 >= len(args) {
			return "", fmt.Errorf("option %q needs a value", args[*i])
		}
		*i++
		return args[*i], nil
	}
	long := map[string]string{"login": "l", "command": "c", "shell": "s", "preserve-environment": "m", "group": "g"}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			names = append(names, args[i+1:]...)
			break
		}
		if arg == "-" {
			c.login = true
			continue
		}
		if !strings.HasPrefix(arg, "-") {
			if len(names) > 0 {
				// After the user everything is the shell's.
				names = append(names, args[i:]...)
				break
			}
			names = append(names, arg)
			continue
		}
		letters := arg[1:]
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			name, v, hasValue := strings.Cut(name, "=")
			letter, known := long[name]
			if !known {
				return c, fmt.Errorf("option %q is not supported in a sandbox", arg)
			}
			letters = letter
			if hasValue {
				letters += v
			}
		}
		for len(letters) > 0 {
			letter := letters[:1]
			letters = letters[1:]
			var err error
			switch letter {
			case "l":
				c.login = true
			case "m", "p":
				c.keepEnv = true
			case "c":
				var text string
				if text, err = value(&i, &letters); err == nil {
					command = []string{"-c", text}
				}
			case "s":
				c.program, err = value(&i, &letters)
			case "g":
				c.group, err = value(&i, &letters)
			default:
				err = fmt.Errorf("option -%s is not supported in a sandbox", letter)
			}
			if err != nil {
				return c, err
			}
		}
	}
	if len(names) > 0 {
		c.user, names = names[0], names[1:]
	}
	c.command = append(command, names...)
	return c, nil
}
