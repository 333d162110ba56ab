//! Servers that a Python package brings, for tests.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// Starts a program that says one line when it is ready and ends with its input. Returns the line.
///
/// # Errors
///
/// Words of Python, where it fails.
pub fn start(
    program: &str,
    argument: Option<&str>,
    environment: &[(&str, &str)],
) -> Result<(String, Child), String> {
    let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut process = Command::new(&python)
        .args(["-W", "ignore", "-c", program])
        .args(argument)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{python}: {error}"))?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stderr = process.stderr.take().unwrap();
    if line.is_empty() {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        return Err(said);
    }
    // A thread reads what the server says, since the server would stop at a full pipe.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    Ok((line.trim().into(), process))
}

/// Returns the server that was found. Where there is none, a line says so, and it is a failure
/// where the variable is set.
pub fn found<'a, T>(found: &'a Result<T, String>, variable: &str, how: &str) -> Option<&'a T> {
    if let Err(said) = found {
        assert!(std::env::var(variable).is_err(), "{how}\n{said}");
        eprintln!("skipped: {how}");
    }
    found.as_ref().ok()
}
