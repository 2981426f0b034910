"""Writes digits.h: scikit-learn's 1,797 images of 8 by 8 pixels from 0 to 16, in one shuffled order, for flash."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main(path: Path = Path(__file__).parent / "digits.h") -> None:
    """Write the file."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    rows = ["{" + ",".join(str(int(pixel)) for pixel in digits.data[image]) + "}" for image in order]
    text = "/* scikit-learn's digits (Alpaydin and Kaynak 1998, UCI Machine Learning Repository), by digits.py. */\n\n"
    text += f"#include <stdint.h>\n\n#define IMAGES {len(rows)}\n\n"
    text += "static const uint8_t digits[IMAGES][64] = {\n" + ",\n".join(rows) + "};\n\n"
    text += f"static const uint8_t classes[IMAGES] = {{{','.join(str(digits.target[image]) for image in order)}}};\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
