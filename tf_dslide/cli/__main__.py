"""Lets `python -m tf_dslide.cli` be `dslide`."""

from tf_dslide.cli import main

if __name__ == "__main__":
    main()
