"""The only place where analysis meets sampling: true counts in, private counts out. One file each."""
