"""``python -m topk_lab`` is ``topk-lab``."""

from topk_lab.cli import main

if __name__ == "__main__":
    main()
