"""`python -m ottla` is the command `ottla`."""

from ottla.cli.main import run

if __name__ == "__main__":
    run()
