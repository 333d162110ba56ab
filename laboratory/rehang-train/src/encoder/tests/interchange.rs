//! Encoders outside of rehang: as ONNX files in the backfill's own runtime and in ONNX Runtime, and as
//! weights that PyTorch reads and writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rehang_core::{Distance, Matrix, Progress, Space};
use rehang_encode::{EncoderConfig, Input};
use rehang_files::{VectorSource, tensors};
use serde_json::{Value, json};

use super::{architectures, encoder, near};
use crate::encoder::{EncoderArchitecture, ImagePooling, Resnet, Shape, Stem, TrainedEncoder, take_weights};
use crate::examples::{ExampleInputs, Images};
use crate::finite_differences::numbers;

/// Makes inputs of a shape: images of random bytes, or random vectors.
fn inputs(shape: Shape, rows: usize) -> ExampleInputs {
    let values = numbers(rows * shape.size(), 11);
    if shape.height * shape.width == 1 {
        return ExampleInputs::Features(Matrix::new(shape.channels, values).unwrap());
    }
    let pixels = values.iter().map(|value| (127.5 + 127.0 * value) as u8).collect();
    ExampleInputs::Images(Images {
        channels: shape.channels,
        height: shape.height,
        width: shape.width,
        pixels,
    })
}

/// Gives the numbers that a runtime is given: pixels from 0 to 1, or the vectors.
fn plain_numbers(inputs: &ExampleInputs) -> Matrix {
    match inputs {
        ExampleInputs::Features(features) => features.clone(),
        ExampleInputs::Images(images) => {
            let numbers = images.pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
            Matrix::new(images.size(), numbers).unwrap()
        }
    }
}

/// Writes sources as the backfill has them: PNG files, or JSON arrays.
fn sources(inputs: &ExampleInputs, folder: &Path) -> Vec<String> {
    (0..inputs.len())
        .map(|row| match inputs {
            ExampleInputs::Features(features) => serde_json::to_string(features.row(row)).unwrap(),
            ExampleInputs::Images(images) => {
                let (width, height) = (images.width as u32, images.height as u32);
                let plane = images.width * images.height;
                let image = images.image(row);
                let name = format!("{row}.png");
                let path = folder.join(&name);
                if images.channels == 1 {
                    image::GrayImage::from_raw(width, height, image.to_vec()).unwrap().save(path).unwrap();
                } else {
                    let at = |x: u32, y: u32| (y * width + x) as usize;
                    let colour =
                        |x, y| image::Rgb([0, 1, 2].map(|channel| image[channel * plane + at(x, y)]));
                    image::RgbImage::from_fn(width, height, colour).save(path).unwrap();
                }
                name
            }
        })
        .collect()
}

fn configuration(shape: Shape) -> EncoderConfig {
    let input = if shape.height * shape.width == 1 {
        json!({"kind": "vector"})
    } else {
        json!({"kind": "image", "width": shape.width, "height": shape.height, "channels": shape.channels})
    };
    serde_json::from_value(json!({"kind": "onnx", "model": "encoder.onnx", "input": input})).unwrap()
}

#[test]
fn exported_encoders_give_the_same_vectors_in_the_backfill() {
    for (architecture, shape) in architectures() {
        let folder = tempfile::tempdir().unwrap();
        let encoder = encoder(architecture, shape);
        fs_err::write(folder.path().join("encoder.onnx"), encoder.to_onnx().unwrap()).unwrap();
        let inputs = inputs(shape, 5);
        let own = encoder.embed(&inputs, &Progress::default()).unwrap();
        let space = Space::new("tiny", own.matrix().columns(), Distance::Cosine, false);
        let backfill = rehang_encode::open(&configuration(shape), &space, folder.path()).unwrap();
        let sources = sources(&inputs, folder.path());
        let items: Vec<Input<'_>> =
            sources.iter().map(|source| Input { id: "item", source, payload: &Value::Null }).collect();
        for (row, vector) in backfill.encode(&items).unwrap().into_iter().enumerate() {
            near(&vector.unwrap(), own.matrix().row(row), 1e-4);
        }
    }
}

/// Program that runs every model of a list on its inputs.
const RUN_ONNX: &str = r#"
import json, sys
import numpy, onnxruntime
for case in json.load(open(sys.argv[1])):
    session = onnxruntime.InferenceSession(case["model"], providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    inputs = numpy.load(case["inputs"]).reshape([-1] + case["sides"])
    assert given.name == case["name"], given.name
    [vectors] = session.run(["vector"], {given.name: inputs})
    numpy.save(case["vectors"], vectors)
"#;

#[test]
fn exported_encoders_give_the_same_vectors_in_onnx_runtime() {
    let Some(python) = python("numpy, onnxruntime") else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: String| folder.path().join(name);
    let mut own = Vec::new();
    let mut cases = Vec::new();
    for (number, (architecture, shape)) in architectures().into_iter().enumerate() {
        let encoder = encoder(architecture, shape);
        let (model, vectors) = (at(format!("{number}.onnx")), at(format!("{number}-vectors.npy")));
        let inputs_at = at(format!("{number}.npy"));
        fs_err::write(&model, encoder.to_onnx().unwrap()).unwrap();
        let inputs = inputs(shape, 5);
        rehang_files::write_matrix(&inputs_at, &plain_numbers(&inputs), None).unwrap();
        own.push((encoder.embed(&inputs, &Progress::default()).unwrap(), vectors.clone()));
        let (name, sides) = if shape.height * shape.width == 1 {
            ("features", vec![shape.channels])
        } else {
            ("pixels", vec![shape.channels, shape.height, shape.width])
        };
        cases.push(
            json!({"model": model, "inputs": inputs_at, "vectors": vectors, "name": name, "sides": sides}),
        );
    }
    let list = at("cases.json".into());
    fs_err::write(&list, serde_json::to_vec(&cases).unwrap()).unwrap();
    run(&python, RUN_ONNX, &[&list]);
    for (own, path) in own {
        let vectors = rehang_files::read_matrix(&VectorSource::path(path)).unwrap();
        near(vectors.as_slice(), own.matrix().as_slice(), 1e-4);
    }
}

/// Program that makes small encoders of PyTorch, the residual ones built and named as torchvision does it; it
/// saves random weights and vectors of given images.
const MAKE_WEIGHTS: &str = r#"
import sys
import numpy, torch
from safetensors.torch import save_file
from torch import nn
torch.manual_seed(3)

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        for number, (inputs, outputs) in enumerate([(3, 4), (4, 8), (8, 16)]):
            setattr(self, f"conv{number}", nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
        self.fc = nn.Linear(16, 5)
    def forward(self, x):
        for number in range(3):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            x = nn.functional.max_pool2d(torch.relu(x), 2)
        return self.fc(x.flatten(1))

class Block(nn.Module):
    def __init__(self, inputs, planes, stride, expansion):
        super().__init__()
        sizes = [(3, planes, stride), (3, planes, 1)]
        if expansion == 4:
            sizes = [(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)]
        channels = inputs
        self.count = len(sizes)
        for number, (side, outputs, step) in enumerate(sizes, 1):
            setattr(self, f"conv{number}", nn.Conv2d(channels, outputs, side, step, side // 2, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
            channels = outputs
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
    def forward(self, x):
        y = x
        for number in range(1, self.count + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            y = torch.relu(y) if number < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

class ResNet(nn.Module):
    def __init__(self, counts, expansion):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(counts):
            blocks = []
            for number in range(count):
                blocks.append(Block(channels, 64 << stage, 2 if stage and not number else 1, expansion))
                channels = (64 << stage) * expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, 5)
    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))

images = torch.from_numpy(numpy.load(f"{sys.argv[1]}/inputs.npy").reshape(-1, 3, 8, 8))
for name, model in [("cnn-small", Small()), ("resnet18", ResNet([2, 2, 2, 2], 1)), ("resnet50", ResNet([3, 4, 6, 3], 4))]:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    model.eval()
    assert any(tensor.dtype == torch.int64 for tensor in model.state_dict().values())
    save_file(model.state_dict(), f"{sys.argv[1]}/{name}.safetensors")
    with torch.no_grad():
        numpy.save(f"{sys.argv[1]}/{name}.npy", model(images).numpy())
"#;

/// Program that says what the tensors of a file are called and how they are shaped.
const READ_NAMES: &str = r#"
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    print(json.dumps({name: list(file.get_tensor(name).shape) for name in file.keys()}))
"#;

#[test]
fn weights_go_to_pytorch_and_come_from_it() {
    let Some(python) = python("numpy, torch, safetensors.torch") else { return };
    let shape = Shape { channels: 3, height: 8, width: 8 };
    let inputs = inputs(shape, 5);
    let folder = tempfile::tempdir().unwrap();
    rehang_files::write_matrix(folder.path().join("inputs.npy"), &plain_numbers(&inputs), None).unwrap();
    run(&python, MAKE_WEIGHTS, &[folder.path()]);
    let (stem, pooling, outputs) = (Stem::Cifar, ImagePooling::Average, 5);
    for (name, architecture) in [
        ("cnn-small", EncoderArchitecture::CnnSmall { width: 4, outputs }),
        ("resnet18", EncoderArchitecture::Resnet18(Resnet { stem, pooling, outputs })),
        ("resnet50", EncoderArchitecture::Resnet50(Resnet { stem, pooling, outputs })),
    ] {
        let theirs = fs_err::read(folder.path().join(format!("{name}.safetensors"))).unwrap();
        let mut tensors = tensors::plain(&theirs).unwrap();
        let mut names: BTreeMap<String, Vec<usize>> =
            tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
        let mut own: TrainedEncoder = encoder(architecture, shape);
        own.state = take_weights(&own.graph().unwrap(), &mut tensors).unwrap();
        assert!(tensors.is_empty(), "{name}: {:?} is left over", tensors.keys());
        own.normalisation.mean.fill(0.0);
        own.normalisation.std.fill(1.0);
        let vectors = own.embed(&inputs, &Progress::default()).unwrap();
        let source = VectorSource::path(folder.path().join(format!("{name}.npy")));
        near(vectors.matrix().as_slice(), rehang_files::read_matrix(&source).unwrap().as_slice(), 1e-4);
        // The way back gives the same names and shapes, and the head's two.
        let path = folder.path().join("own.safetensors");
        own.save(&path).unwrap();
        names.insert("head.weight".into(), vec![3, outputs]);
        names.insert("head.bias".into(), vec![3]);
        let read: BTreeMap<String, Vec<usize>> =
            serde_json::from_slice(&run(&python, READ_NAMES, &[&path])).unwrap();
        assert_eq!(read, names, "{name}");
    }
}

/// Finds the Python that has these modules; gives nothing and says so where there is none.
fn python(modules: &str) -> Option<String> {
    let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
    let usable = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    if usable.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    eprintln!("skipped: {python} cannot import {modules}; set REHANG_PYTHON to one that can");
    None
}

/// Runs a program that must succeed; gives what it prints.
fn run(python: &str, program: &str, arguments: &[&Path]) -> Vec<u8> {
    let output = Command::new(python).args(["-c", program]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
