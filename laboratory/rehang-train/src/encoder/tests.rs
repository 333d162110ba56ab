//! Encoders as files, and what they refuse.

mod interchange;

use rehang_core::adapter::Training;
use rehang_core::{Head, HeadKind, Matrix, Progress};
use rehang_files::tensors::{self, FileKind};

use super::*;
use crate::compatible::HeadForm;
use crate::examples::{ExampleInputs, Images, Normalisation};
use crate::finite_differences::numbers;

pub(super) fn architectures() -> Vec<(EncoderArchitecture, Shape)> {
    let image = |channels, side| Shape { channels, height: side, width: side };
    let (stem, pooling) = (Stem::Cifar, ImagePooling::Average);
    vec![
        (EncoderArchitecture::Mlp { hidden: vec![7, 6], outputs: 5 }, image(9, 1)),
        (EncoderArchitecture::CnnSmall { width: 4, outputs: 5 }, image(3, 13)),
        (EncoderArchitecture::Resnet18(Resnet { stem, pooling, outputs: 5 }), image(3, 8)),
        (EncoderArchitecture::Resnet18(Resnet { stem: Stem::Imagenet, pooling, outputs: 5 }), image(1, 33)),
        (
            EncoderArchitecture::Resnet50(Resnet {
                stem,
                pooling: ImagePooling::GeneralisedMean,
                outputs: 5,
            }),
            image(3, 8),
        ),
    ]
}

pub(super) fn near(left: &[f32], right: &[f32], tolerance: f32) {
    let size = right.iter().fold(1e-3_f32, |size, value| size.max(value.abs()));
    for (left, right) in left.iter().zip(right) {
        assert!((left - right).abs() <= tolerance * size, "{left} against {right} (size {size})");
    }
    assert_eq!(left.len(), right.len());
}

pub(super) fn encoder(architecture: EncoderArchitecture, shape: Shape) -> TrainedEncoder {
    let graph = architecture.graph(shape).unwrap();
    let mut state = graph.initial(8);
    for value in &mut state.running_variance {
        *value = 0.7;
    }
    let classes = 3;
    let weight = Matrix::new(graph.outputs(), numbers(classes * graph.outputs(), 4)).unwrap();
    let form = HeadForm::ArcFace { scale: 30.0, margin: 0.3 };
    TrainedEncoder {
        model: "tiny".into(),
        architecture,
        input: shape,
        normalisation: Normalisation { mean: vec![0.4; shape.channels], std: vec![0.3; shape.channels] },
        state,
        head: Head::new(weight, None, form.head_kind()).unwrap(),
        form,
        classes: vec!["a".into(), "b".into(), "c".into()],
        training: Training { method: "plain".into(), version: "0.1.0".into(), ..Training::default() },
    }
}

#[test]
fn a_file_is_the_same_encoder_again_and_damage_is_noticed() {
    for (architecture, shape) in architectures() {
        let encoder = encoder(architecture, shape);
        let bytes = encoder.to_bytes().unwrap();
        assert_eq!(TrainedEncoder::from_bytes(&bytes, "file").unwrap(), encoder);
        assert_eq!(encoder.to_bytes().unwrap(), bytes);
        for cut in [0, 7, bytes.len() / 2, bytes.len() - 1] {
            assert!(TrainedEncoder::from_bytes(&bytes[..cut], "file").unwrap_err().is_corrupt());
        }
    }
}

#[test]
fn a_file_that_claims_more_than_it_holds_is_refused() {
    let shape = Shape { channels: 9, height: 1, width: 1 };
    let encoder = encoder(EncoderArchitecture::Mlp { hidden: vec![7], outputs: 5 }, shape);
    let kind = FileKind { format: "rehang-encoder", thing: "an encoder", version: 1 };
    let (metadata, tensors) = tensors::read(&encoder.to_bytes().unwrap(), &kind).unwrap();
    let tensors: Vec<_> = tensors.into_values().collect();
    let many = format!(r#"{{"kind":"mlp","hidden":[{}7],"outputs":5}}"#, "7,".repeat(99));
    for (key, claim, reason) in [
        ("architecture", r#"{"kind":"mlp","outputs":1000000000000}"#, "[1000000000000, 9] is needed"),
        ("architecture", r#"{"kind":"mlp","outputs":4611686018427387904}"#, "fit into memory"),
        ("architecture", r#"{"kind":"mlp","hidden":[2147483648],"outputs":5}"#, "[2147483648, 9] is needed"),
        ("architecture", many.as_str(), "100 hidden layers"),
        ("input", "[18446744073709551615,2,2]", "fit into memory"),
        ("input", "[9,18446744073709551615,1]", "at most 16384"),
    ] {
        let mut metadata = metadata.clone();
        metadata.insert(key.into(), claim.into());
        // The check sum is right, as where another program, or a defect, made the file.
        let bytes = tensors::write(&kind, metadata, &tensors).unwrap();
        let error = TrainedEncoder::from_bytes(&bytes, "file").unwrap_err();
        assert!(error.is_corrupt() && error.to_string().contains(reason), "{claim}: {error}");
    }
    let widest = EncoderArchitecture::CnnSmall { width: usize::MAX / 2, outputs: 5 };
    assert!(widest.graph(Shape { channels: 3, height: 8, width: 8 }).is_err());
}

#[test]
fn heads_keep_their_margins_where_adapters_are_fitted_with_them() {
    let core = |margin| HeadKind::CosFace { scale: 20.0, margin };
    assert_eq!(HeadForm::CosFace { scale: 20.0, margin: 0.35 }.head_kind(), core(0.35));
    assert_eq!(HeadForm::NormalisedSoftmax { scale: 20.0 }.head_kind(), core(0.0));
    let arcface = HeadKind::ArcFace { scale: 20.0, margin: 0.35 };
    assert_eq!(HeadForm::ArcFace { scale: 20.0, margin: 0.35 }.head_kind(), arcface);
    assert_eq!(HeadForm::Softmax.head_kind(), HeadKind::Softmax);
}

#[test]
fn inputs_of_another_shape_are_refused() {
    let shape = Shape { channels: 3, height: 16, width: 16 };
    let encoder = encoder(EncoderArchitecture::CnnSmall { width: 4, outputs: 5 }, shape);
    let images = |channels: usize| {
        let pixels = vec![100; 2 * channels * 256];
        ExampleInputs::Images(Images { channels, height: 16, width: 16, pixels })
    };
    let embed = |inputs: &ExampleInputs| encoder.embed(inputs, &Progress::default());
    assert_eq!(embed(&images(3)).unwrap().len(), 2);
    let error = embed(&images(1)).unwrap_err().to_string();
    assert!(error.contains("1 x 16 x 16") && error.contains("3 x 16 x 16"), "{error}");
}
