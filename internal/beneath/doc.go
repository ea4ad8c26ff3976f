// Package beneath reads, writes, lists and searches files below one folder of the host, for the file tools of an agent.
//
// The folder is hostile: the commands of the agent change it at any moment, while a tool works in it. So nothing is
// checked by name and then opened by name. Every name is resolved by the kernel in one step from a descriptor of the
// folder (openat2), and what it finds is judged by its descriptor. No symbolic link is followed, not even one that stays
// inside, no link of /proc, no mount is entered, and only regular files are read: a pipe or a device is never opened.
// A kernel without openat2 is refused, there is no other way.
//
// What git keeps is read-only: a part of a name that is .git, or that a file system takes for it, is never written to.
// A folder that git takes for a repository without being called .git is a folder like any other.
//
// A file is written to a file beside it, which then takes its place: readers see the old or the new, and a hard link to
// a file elsewhere is replaced, its file untouched. A file with several names is read only if it belongs to the owner of
// the folder: who may write in the folder can give a file of another user a name in it (where fs.protected_hardlinks is
// off), and a privileged process would read it to them. Files of the folder's owner are no secret to who writes as them.
//
// One thing is not prevented: a folder that is moved out of the root while a file is written in it takes the file along.
// Only who may write to both places can do that, and they could move the file as well.
//
// The package touches nothing but the folder and /proc/self/fd. It knows no tool, no sandbox and no policy.
package beneath
