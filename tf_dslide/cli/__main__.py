"""Makes `python -m tf_dslide.cli` do what `dslide` does."""

from tf_dslide.cli import main

if __name__ == "__main__":
    main()
