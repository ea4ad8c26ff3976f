package sandbox

// WithWorkspaceOnly has commands write in the workspace, in /tmp and in their home only, root's in there as well, and see
// nothing else of the host's users: the image's own files, and what WithContext and WithReadOnly show, and no volumes. On
// the host backend the image is the host itself: its programs and what of /etc everyone may read. The home is one of the
// sandbox's own, and the sandbox is sealed, as by WithService, or Open fails.
func WithWorkspaceOnly() Option { return func(o *options) { o.workspaceOnly = true } }

// WorkspaceOnly says whether commands see and write the workspace only (WithWorkspaceOnly).
func (s *Sandbox) WorkspaceOnly() bool { return s.workspaceOnly }
