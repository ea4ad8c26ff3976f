package cli

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"ravi/internal/command"
)

const rootLong = `Ravi runs AI agents in disposable sandboxes, under a control plane that you own.

Nothing runs on your machine but Ravi itself: a sandbox has its own kernel, no
network unless you allow it, and is thrown away at the end. What the agent did
comes back as a patch that was proven to apply.`

const rootExample = `  ravi sandbox run --repo . -- make test
  ravi sandbox run --repo . --task "fix the failing test" -- my-agent
  ravi sandbox ls
  ravi sandbox kill --all`

// newRoot makes the cobra tree of the table. A command leaves its exit code in exit.
func newRoot(table *command.Table, env *command.Env, exit *int) *cobra.Command {
	root := &cobra.Command{
		Use:           "ravi",
		Short:         "AI agents in disposable sandboxes",
		Long:          rootLong,
		Example:       rootExample,
		Version:       Version(),
		SilenceErrors: true, SilenceUsage: true,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("ravi {{.Version}}\n")
	root.SetFlagErrorFunc(usageError)
	root.PersistentFlags().BoolVar(&env.JSON, "json", false, "print the result, or the error, as JSON on stdout")
	root.PersistentFlags().BoolVarP(&env.Quiet, "quiet", "q", false, "no progress, only what was asked for")
	root.AddGroup(&cobra.Group{ID: "work", Title: "Commands:"}, &cobra.Group{ID: "self", Title: "This program:"})
	root.SetHelpCommandGroupID("self")
	root.SetCompletionCommandGroupID("self")

	groups := map[string]*cobra.Command{}
	for _, g := range table.Groups() {
		group := &cobra.Command{
			Use: g.Words()[len(g.Words())-1], Short: g.Summary, Args: noSuchCommand,
			RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		}
		groups[g.Name] = group
		if g.Under != "" {
			groups[g.Under].AddCommand(group)
			continue
		}
		group.GroupID = "work"
		root.AddCommand(group)
	}
	for _, c := range table.Commands() {
		groups[c.Group].AddCommand(bind(c, env, exit))
	}
	for _, g := range table.Groups() {
		// A group of one command that has the group's name is that command: `ravi bench`.
		if subs := groups[g.Name].Commands(); len(subs) == 1 && subs[0].Name() == g.Name {
			only := subs[0]
			root.RemoveCommand(groups[g.Name])
			groups[g.Name].RemoveCommand(only)
			only.GroupID = "work"
			root.AddCommand(only)
		}
	}
	return root
}

// noSuchCommand refuses an unknown command, which cobra would answer with help and success for a group.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + cmd.CommandPath() + " " + near[0] + "?"
	}
	return command.Usage(fmt.Sprintf("there is no command %q in %s", args[0], cmd.CommandPath()), hint)
}

func bind(c *command.Command, env *command.Env, exit *int) *cobra.Command {
	in := c.NewInput()
	cmd := &cobra.Command{
		Use: useLine(c), Aliases: c.Aliases, Short: c.Summary, Long: c.Long, Example: examples(c),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := argsBefore(c, cmd, args)
			if help, herr := cmd.Flags().GetBool("help"); herr == nil && help {
				return cmd.Help()
			}
			if err == nil {
				err = setArgs(c, in, args)
			}
			if err != nil {
				return usageError(cmd, err)
			}
			code, err := runCommand(cmd.Context(), env, c, in)
			*exit = code
			return err
		},
	}
	for i := range c.Fields {
		f := &c.Fields[i]
		if f.Arg != "" {
			if f.Rest() {
				// What follows the first argument belongs to it: `run -- sh -c …` and `run sh -c …` are the same.
				cmd.Flags().SetInterspersed(f.Host != command.HostCommand)
			}
			continue
		}
		flag := cmd.Flags().VarPF(&flagValue{field: f, in: in}, f.Flag, f.Short, f.Usage)
		if f.Type.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	return cmd
}

// argsBefore reads the flags among the arguments that stand before a command and its own: in `exec try --user root -- ls -l`
// the flags of exec end where ls begins.
func argsBefore(c *command.Command, cmd *cobra.Command, args []string) (before []string, err error) {
	n := 0
	for _, f := range c.Fields {
		if f.Arg == "" {
			continue
		}
		if f.Rest() && f.Host == command.HostCommand {
			for len(before) < n && len(args) > 0 {
				before = append(before, args[0])
				if err := cmd.Flags().Parse(args[1:]); err != nil {
					return nil, err
				}
				args = cmd.Flags().Args()
			}
			break
		}
		n++
	}
	return append(before, args...), nil
}

// flagValue lets cobra set a field of an input.
type flagValue struct {
	field *command.Field
	in    any
	given bool
}

func (v *flagValue) Set(text string) error {
	if !v.given {
		v.given = true
		v.field.Clear(v.in)
	}
	err := v.field.Set(v.in, text)
	if err != nil && v.field.Host == command.HostSecret {
		return secretFlagError{fmt.Errorf("--%s: %w", v.field.Flag, err)} // what is shown otherwise repeats the text
	}
	return err
}

// secretFlagError is what is wrong with a flag whose value must not be shown.
type secretFlagError struct{ error }

func (v *flagValue) String() string {
	if v == nil || v.field == nil {
		return ""
	}
	return v.field.Get(v.in)
}

func (v *flagValue) Type() string {
	switch {
	case v.field.Type.Kind() == reflect.Bool:
		return "bool" // cobra shows no value for it
	case v.field.Holder != "":
		return v.field.Holder
	}
	return strings.ToUpper(v.field.Flag)
}

// setArgs gives the arguments to the fields, in their order.
func setArgs(c *command.Command, in any, args []string) error {
	for i := range c.Fields {
		f := &c.Fields[i]
		if f.Arg == "" {
			continue
		}
		if len(args) == 0 {
			if f.Optional {
				continue
			}
			return fmt.Errorf("%s is missing", f.Arg)
		}
		n := 1
		if f.Rest() {
			n = len(args)
		}
		for _, arg := range args[:n] {
			if err := f.Set(in, arg); err != nil {
				return fmt.Errorf("%s %q: %w", f.Arg, arg, err)
			}
		}
		args = args[n:]
	}
	if len(args) > 0 {
		return fmt.Errorf("%q is one argument too many", args[0])
	}
	return nil
}

func useLine(c *command.Command) string {
	line := c.Name + " [flags]"
	for _, f := range c.Fields {
		arg := f.Arg
		switch {
		case arg == "":
			continue
		case f.Rest() && f.Host == command.HostCommand:
			arg = "-- " + arg + " [ARG…]"
		case f.Rest():
			arg += "…"
		}
		if f.Optional {
			arg = "[" + arg + "]"
		}
		line += " " + arg
	}
	return line
}

func examples(c *command.Command) string {
	var lines []string
	for _, e := range c.Examples {
		if e.What != "" {
			lines = append(lines, "  # "+e.What)
		}
		lines = append(lines, "  "+e.Line)
	}
	return strings.Join(lines, "\n")
}

// wantsJSON says whether --json stands on the command line before a --: a usage error must know before flags are
// parsed, since parsing is what failed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

func colours(terminal bool) bool { return terminal && os.Getenv("NO_COLOR") == "" }
