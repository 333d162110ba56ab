"""Makes the models of the tests, and what ONNX Runtime says to their inputs.

    pip install numpy pillow onnx onnxruntime torch tokenizers
    python make.py

Every number comes from a seed. The models are exported by PyTorch, as users' models are.
"""

import io
import json
import pathlib

import numpy
import onnx
import onnx.numpy_helper
import onnxruntime
import PIL.Image
import tokenizers
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
torch.manual_seed(7)


class Cnn(nn.Module):
    """Images [b, 3, 12, 16] to vectors [b, 6], by what image models are made of."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.two, self.skip = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(4, 6, 1, stride=2)
        self.head = nn.Linear(6, 6)

    def forward(self, image):
        x = torch.max_pool2d(torch.relu(self.norm(self.one(image))), 2)
        x = torch.nn.functional.gelu(self.two(x) + self.skip(x))
        return self.head(x.mean((2, 3)))


class Text(nn.Module):
    """Tokens [b, t] to states [b, t, 8], by one layer of a transformer; and the states' masked sum as a second output."""

    def __init__(self, words):
        super().__init__()
        self.words, self.places = nn.Embedding(words, 8), nn.Embedding(16, 8)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        heads = lambda it: it.reshape(it.shape[0], it.shape[1], 2, 4).transpose(1, 2)
        query, key, value = (heads(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / 2 + (1 - attention_mask[:, None, None, :].float()) * -10000
        mixed = (scores.softmax(3) @ value).transpose(1, 2)
        x = self.norm(x + mixed.reshape(x.shape))
        return x, (x * attention_mask[:, :, None].float()).sum(1)


def export(model, inputs, name, input_names, output_names, dynamic):
    model.eval()
    torch.onnx.export(
        model, inputs, HERE / name, input_names=input_names, output_names=output_names,
        dynamic_axes=dynamic, dynamo=False, opset_version=17,
    )


def run(name, feeds, output=0):
    session = onnxruntime.InferenceSession(HERE / name, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[output]


def formats():
    """A picture of 6 x 4 pixels in formats beside PNG and JPEG, and with orientation tags: red grows to the right, green downwards."""
    pixels = numpy.zeros((4, 6, 3), numpy.uint8)
    pixels[..., 0], pixels[..., 1] = numpy.arange(6)[None] * 40, numpy.arange(4)[:, None] * 60
    pixels[0, 0, 2] = 255
    picture, other = PIL.Image.fromarray(pixels), PIL.Image.new("RGB", (6, 4), (9, 9, 9))
    picture.save(HERE / "lossless.webp", lossless=True)
    picture.save(HERE / "lossy.webp", quality=90)
    picture.save(HERE / "anim.webp", save_all=True, append_images=[other], lossless=True)
    picture.save(HERE / "colours.bmp")
    picture.save(HERE / "colours.tiff", compression="tiff_lzw")
    picture.quantize(64).save(HERE / "two-frames.gif", save_all=True, append_images=[other.quantize(4)])
    exif = PIL.Image.Exif()
    exif[0x112] = 6
    for name in ["turned.tiff", "turned.png", "turned.webp"]:
        picture.save(HERE / name, exif=exif, **({"lossless": True} if name.endswith("webp") else {}))
    large = PIL.Image.fromarray(numpy.kron(pixels, numpy.ones((16, 16, 1), numpy.uint8)))
    large.save(HERE / "turned.jpg", exif=exif, quality=95)


def photographs():
    """JPEG files of every form: with a thumbnail that has an end marker of its own, progressive, grey, of four inks."""
    rows, columns = numpy.mgrid[0:96, 0:128]
    waves = [127 + 120 * numpy.sin(rows / a + columns / b) for a, b in [(7, 11), (5, -13), (17, 3)]]
    picture = PIL.Image.fromarray(numpy.stack(waves, axis=2).astype(numpy.uint8))
    thumbnail = io.BytesIO()
    picture.resize((16, 12)).save(thumbnail, "jpeg")
    exif = b"Exif\0\0" + thumbnail.getvalue()
    picture.save(HERE / "photo.jpg", quality=80, exif=exif, restart_marker_rows=2)
    picture.save(HERE / "progressive.jpg", quality=80, progressive=True)
    picture.convert("L").save(HERE / "grey.jpg", quality=80)
    picture.convert("CMYK").save(HERE / "inks.jpg", quality=80)


def kept():
    """Tokens [b, t] to their mean [b, 1, 8]: a model that pools and keeps the side it pooled over."""
    helper, number = onnx.helper, onnx.TensorProto
    words = numpy.random.default_rng(7).normal(size=(17, 8)).astype(numpy.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["words", "input_ids"], ["states"]),
            helper.make_node("ReduceMean", ["states"], ["mean"], axes=[1], keepdims=1),
        ],
        "kept",
        [helper.make_tensor_value_info("input_ids", number.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("mean", number.FLOAT, ["batch", 1, 8])],
        [onnx.numpy_helper.from_array(words, "words")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, HERE / "kept.onnx")


def main():
    expected = {}
    photographs()
    formats()
    kept()

    # Images: a png with colours that differ at every pixel, of the model's own size.
    rows, columns = numpy.mgrid[0:12, 0:16]
    pixels = numpy.stack([rows * 20, columns * 15, (rows * columns) % 256], axis=2).astype(numpy.uint8)
    PIL.Image.fromarray(pixels).save(HERE / "colours.png")
    PIL.Image.fromarray(255 - pixels[:, :, 0]).save(HERE / "grey.png")
    cnn = Cnn()
    cnn(torch.randn(8, 3, 12, 16))  # so that the normalisation has statistics to carry
    image = torch.zeros(1, 3, 12, 16)
    export(cnn, (image,), "cnn.onnx", ["image"], ["vector"], {"image": {0: "batch"}, "vector": {0: "batch"}})
    export(cnn, (torch.zeros(2, 3, 12, 16),), "cnn-fixed-batch.onnx", ["image"], ["vector"], {})
    mean, std = numpy.array([0.485, 0.456, 0.406]), numpy.array([0.229, 0.224, 0.225])
    for name in ["colours.png", "grey.png"]:
        loaded = numpy.asarray(PIL.Image.open(HERE / name).convert("RGB")) / 255
        ready = ((loaded - mean) / std).transpose(2, 0, 1)[None].astype(numpy.float32)
        expected[name] = run("cnn.onnx", {"image": ready})[0].tolist()

    # Texts: word pieces, with a padding id that is not 0 so that no reader gets it right by luck.
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3}
    for word in "the a cat dog sat on mat un ##happy ##ly red green blue".split():
        vocabulary[word] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(pad_id=3, pad_token="[PAD]")
    tokenizer.save(str(HERE / "tokenizer.json"))
    text = Text(len(vocabulary))
    tokens = torch.ones(2, 5, dtype=torch.long)
    axes = {0: "batch", 1: "tokens"}
    export(
        text, (tokens, tokens), "text.onnx", ["input_ids", "attention_mask"], ["states", "sum"],
        {"input_ids": axes, "attention_mask": axes, "states": axes, "sum": {0: "batch"}},
    )
    tokenizer.no_padding()
    for sentence in ["The cat sat on the mat", "unhappily", "", "A red dog, a green dog, a blue dog!"]:
        encoding = tokenizer.encode(sentence)
        ids = numpy.array([encoding.ids], dtype=numpy.int64)
        states = run("text.onnx", {"input_ids": ids, "attention_mask": numpy.ones_like(ids)})[0]
        expected[f"mean: {sentence}"] = states.mean(0).tolist()
        expected[f"cls: {sentence}"] = states[0].tolist()
        expected[f"last: {sentence}"] = states[-1].tolist()
        expected[f"sum: {sentence}"] = states.sum(0).tolist()

    # Vectors: a small network of dense layers.
    mlp = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    export(mlp, (torch.zeros(1, 5),), "mlp.onnx", ["x"], ["y"], {"x": {0: "batch"}, "y": {0: "batch"}})
    for vector in [[0, 0, 0, 0, 0], [1, -2, 3.5, 0.25, -1]]:
        expected[json.dumps(vector)] = run("mlp.onnx", {"x": numpy.array([vector], dtype=numpy.float32)})[0].tolist()

    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


main()
