//! The binary `rehang`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rehang_cli::main(std::env::args_os()))
}
