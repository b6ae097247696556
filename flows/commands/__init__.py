"""The commands of `headrace`, one file each: `main(args)` returns an exit code or nothing for 0."""
