#!/usr/bin/env python3
"""Takes the UCI handwritten digits out of the scikit-learn package and writes demo/images.npy and demo/label.npy.

    pip install scikit-learn && python3 scripts/extract-digits.py

The images are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, UCI Machine
Learning Repository, CC BY 4.0), 1,797 images of 8 x 8 pixels with values 0..16, as scikit-learn carries them.
"""
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

target = Path(__file__).resolve().parent.parent / "demo"
target.mkdir(exist_ok=True)
digits = load_digits()
assert digits.data.shape == (1797, 64) and digits.data.max() == 16
np.save(target / "images.npy", digits.data.astype(np.uint8))
np.save(target / "label.npy", digits.target.astype(np.int32))
print(f"wrote {target}/images.npy and {target}/label.npy")
