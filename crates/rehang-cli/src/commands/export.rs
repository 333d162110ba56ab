//! `rehang export`: adapters as ONNX files.

use rehang_core::Result;
use rehang_files::adapter_file::export_onnx;

use super::Exit;
use crate::arguments::ExportOnnxArguments;

/// Writes the ONNX file.
pub fn run(arguments: &ExportOnnxArguments, json: bool) -> Result<Exit> {
    let answer = export_onnx(&arguments.file, &arguments.output)?;
    let (path, bytes) = (answer.onnx.display(), answer.bytes);
    let (inputs, outputs) = (answer.inputs.join(", "), answer.outputs.join(", "));
    let text = format!("{path} ({bytes} bytes): input {inputs}, output {outputs}\n");
    Exit::Done.print(json, &answer, &text)
}
