//! Program of the user that reads items and writes vectors, as an encoder.
//!
//! The protocol stands in `docs/reference/encoders.md`. Each line carries the id of its item. So a program
//! that prints a line too many or too few can never give a vector to the wrong item.

mod process;
#[cfg(all(test, unix))]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::{Error, ErrorKind, Matrix, Permit, Result, Semaphore, Space};
use rehang_files::array_from_bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::Check;
use crate::config::keys::{at_least_one, resolve, seconds};
use crate::config::{CommandConfig, CommandFormat};
use crate::contract::{Answer, Encoder, Input, ItemFailure, Spent};
use crate::fingerprint::Fingerprint;
use crate::json::read_json;
use crate::meter::{Meter, lock};
use process::{Launch, Output, OutputPiece, Process};

/// Faults one after the other, without a single answer in the whole run, after which the program is taken for
/// broken.
const FAULTS_WITHOUT_ANSWER_MAX: usize = 3;
/// Items one after the other that fail alone, after which the rest of their batch is left untried.
const FAULTS_ALONE_MAX: usize = 2;
/// Bytes of JSON that one number and the characters around it may take. `LINE_BYTES_MORE` is for a line
/// beside its vector.
const NUMBER_BYTES_MAX: usize = 40;
const LINE_BYTES_MORE: usize = 1 << 16;

/// Encoder behind [`CommandConfig`].
pub(crate) struct Command {
    check: Check,
    /// Fingerprint of the keys that vectors depend on.
    configured: String,
    has_revision: bool,
    launch: Launch,
    format: CommandFormat,
    persistent: bool,
    batch: usize,
    processes: usize,
    timeout: Duration,
    /// Semaphore that lets as many processes be at work as may be.
    slots: Semaphore,
    /// Processes that wait for a batch.
    idle: Mutex<Vec<Process>>,
    meter: Meter,
    answered: AtomicBool,
    faults: AtomicUsize,
}

/// Seat of one of the processes that may be at work. A process that is left in it serves the next batch.
struct Seat<'a> {
    command: &'a Command,
    process: Option<Process>,
    /// Permit of the seat; it is given back last.
    _permit: Permit<'a>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        lock(&self.command.idle).extend(self.process.take());
    }
}

impl Command {
    pub(crate) fn open(config: &CommandConfig, space: &Space, base: &Path) -> Result<Self> {
        let Some((first, arguments)) = config.program.split_first() else {
            return Err(Error::option(
                "program",
                "[]",
                "the program and its arguments, as in [\"python3\", \"encode.py\"]",
            ));
        };
        at_least_one("batch", config.batch)?;
        at_least_one("processes", config.processes)?;
        let timeout = seconds("timeout_seconds", config.timeout_seconds)?;
        let persistent = config.persistent.unwrap_or(config.format == CommandFormat::Jsonl);
        if persistent && config.format == CommandFormat::Npy {
            return Err(Error::option(
                "persistent",
                "true",
                "false with format = \"npy\", since the end of the matrix is the end of the program",
            ));
        }
        // A name with a slash is a path, and paths are seen from the folder of the configuration.
        let is_path = Path::new(first).components().count() > 1;
        let program = if is_path { resolve(base, first) } else { PathBuf::from(first) };
        let folder = resolve(base, "");
        let program = if is_path { std::path::absolute(&program).unwrap_or(program) } else { program };
        let keys = (&config.program, config.format, config.normalise, &config.revision);
        let configured = Fingerprint::new("command").with(&keys).text();
        Ok(Self {
            configured,
            has_revision: config.revision.is_some(),
            check: Check::new(space, format!("the program {}", config.program.join(" ")), config.normalise),
            launch: Launch {
                program,
                arguments: arguments.to_vec(),
                folder,
                line_bytes_max: space
                    .dimension
                    .saturating_mul(NUMBER_BYTES_MAX)
                    .saturating_add(LINE_BYTES_MORE),
            },
            format: config.format,
            persistent,
            batch: config.batch,
            processes: config.processes,
            timeout,
            slots: Semaphore::new(config.processes),
            idle: Mutex::default(),
            meter: Meter::default(),
            answered: AtomicBool::new(false),
            faults: AtomicUsize::new(0),
        })
    }

    /// Whether the program lives from batch to batch, and nothing says what its vectors depend on.
    ///
    /// A program that ends with each batch has no state to drift in, and would be started once more for a
    /// single item.
    pub(crate) fn may_drift(&self) -> bool {
        self.persistent && !self.has_revision
    }

    /// Waits until another process may be at work.
    fn seat(&self) -> Seat<'_> {
        let permit = self.slots.acquire();
        Seat { command: self, process: lock(&self.idle).pop(), _permit: permit }
    }

    /// Asks for a part of a batch and appends the answers that came, up to the fault if there was one. After
    /// a fault the process is gone.
    fn attempt(
        &self,
        seat: &mut Seat<'_>,
        part: &[Input<'_>],
        answers: &mut Vec<Answer>,
    ) -> Result<Option<String>> {
        let deadline = rehang_clock::now() + self.timeout;
        let mut process = match seat.process.take() {
            Some(process) => process,
            None => Process::start(&self.launch, self.output(part.len()))?,
        };
        let before = answers.len();
        let ended = match self.format {
            CommandFormat::Jsonl => self.lines(&mut process, part, deadline, answers),
            CommandFormat::Npy => self.matrix(&mut process, part, deadline, answers),
        };
        if answers.len() > before {
            self.answered.store(true, Ordering::Relaxed);
            self.faults.store(0, Ordering::Relaxed);
        }
        let piece = match ended {
            Ok(()) => {
                seat.process = self.persistent.then_some(process);
                return Ok(None);
            }
            Err(Stop::Fatal(error)) => return Err(error),
            Err(Stop::Fault(piece)) => piece,
        };
        let reason = self.reason(&piece, process);
        let faults = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        if faults >= FAULTS_WITHOUT_ANSWER_MAX && !self.answered.load(Ordering::Relaxed) {
            return Err(
                ErrorKind::Unavailable { service: self.check.encoder().into(), detail: reason }.into()
            );
        }
        Ok(Some(format!("{}: {reason}", self.check.encoder())))
    }

    /// Serves a run of inputs with one process, part by part.
    fn serve(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(inputs.len());
        let mut seat = self.seat();
        let (mut part_max, mut alone) = (self.batch, 0);
        while answers.len() < inputs.len() {
            let before = answers.len();
            let inputs_left = &inputs[before..];
            let part = &inputs_left[..part_max.min(inputs_left.len())];
            self.meter.sent(part.len());
            let Some(reason) = self.attempt(&mut seat, part, &mut answers)? else {
                alone = 0;
                continue;
            };
            // One item may have brought the program down. From here on the items go one by one, so that it
            // alone fails and the others of its batch do not.
            part_max = 1;
            if part.len() > 1 {
                if !self.answered.load(Ordering::Relaxed) {
                    // Items like each other often stand together. The one at the other end tells whether the
                    // program itself is broken; it is asked for again when its turn comes.
                    let last = &inputs[inputs.len() - 1..];
                    self.meter.sent(last.len());
                    self.attempt(&mut seat, last, &mut Vec::new())?;
                }
                continue;
            }
            answers.push(Err(ItemFailure::Temporary(reason.clone())));
            alone += 1;
            if alone >= FAULTS_ALONE_MAX {
                // The remaining items have done nothing wrong: their turn has not come.
                answers.resize(inputs.len(), Err(ItemFailure::Untried(reason)));
            }
        }
        Ok(answers)
    }

    fn output(&self, items: usize) -> Output {
        match self.format {
            CommandFormat::Jsonl => Output::Lines,
            // Eight bytes a number are the widest numbers there are.
            CommandFormat::Npy => Output::Whole(
                items
                    .saturating_mul(self.check.space().dimension)
                    .saturating_mul(8)
                    .saturating_add(LINE_BYTES_MORE),
            ),
        }
    }

    /// Asks for a part in lines of JSON, and reads one line an item.
    fn lines(
        &self,
        process: &mut Process,
        part: &[Input<'_>],
        deadline: Instant,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Stop> {
        if let Some(line) = process.unasked() {
            return Err(broken(format!(
                "it wrote a line without having been given an item: {}",
                shown(&line)
            )));
        }
        process.write(request(part));
        if !self.persistent {
            process.close_input();
        }
        let before = answers.len();
        for input in part {
            match process.next(deadline) {
                OutputPiece::Bytes(line) => answers.push(self.answer(input, &line)?),
                other => return Err(Stop::Fault(other)),
            }
        }
        if self.persistent {
            return Ok(());
        }
        match process.next(deadline) {
            OutputPiece::End => Ok(()),
            other => {
                // A program that is done and wrote too many lines is trusted in none.
                answers.truncate(before);
                Err(match other {
                    OutputPiece::Bytes(_) => {
                        broken(format!("it wrote more than {} lines for {0} items", part.len()))
                    }
                    other => Stop::Fault(other),
                })
            }
        }
    }

    /// Reads the answer for an item from a line of the program.
    fn answer(&self, input: &Input<'_>, line: &[u8]) -> Result<Answer, Stop> {
        let line: Line = read_json(line)
            .map_err(|error| broken(format!("a line is not as it should be ({error}): {}", shown(line))))?;
        if line.id != input.id {
            return Err(broken(format!("it answered item {:?} where item {:?} was next", line.id, input.id)));
        }
        match (line.vector, line.error) {
            (Some(vector), None) => {
                let vector = vector.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect();
                self.check.vector(input.id, vector).map_err(Stop::Fatal)
            }
            (None, Some(reason)) if line.permanent => Ok(Err(ItemFailure::Permanent(reason))),
            (None, Some(reason)) => Ok(Err(ItemFailure::Temporary(reason))),
            _ => Err(broken(format!("the line of item {:?} needs either a vector or an error", input.id))),
        }
    }

    /// Asks for a part, and reads one matrix for all of it.
    fn matrix(
        &self,
        process: &mut Process,
        part: &[Input<'_>],
        deadline: Instant,
        answers: &mut Vec<Answer>,
    ) -> Result<(), Stop> {
        process.write(request(part));
        process.close_input();
        let bytes = match process.next(deadline) {
            OutputPiece::Bytes(bytes) => bytes,
            other => return Err(Stop::Fault(other)),
        };
        if !process.succeeds(deadline) {
            return Err(Stop::Fault(OutputPiece::End));
        }
        let matrix =
            read_npy(&bytes).map_err(|error| broken(format!("its output is no .npy matrix: {error}")))?;
        self.check.width(matrix.columns()).map_err(Stop::Fatal)?;
        if matrix.rows() != part.len() {
            return Err(broken(format!("it wrote {} rows for {} items", matrix.rows(), part.len())));
        }
        for (row, input) in part.iter().enumerate() {
            answers.push(self.check.vector(input.id, matrix.row(row).to_vec()).map_err(Stop::Fatal)?);
        }
        Ok(())
    }

    /// Says what went wrong, with the program's last words. Ends the process.
    fn reason(&self, piece: &OutputPiece, process: Process) -> String {
        let what = match piece {
            OutputPiece::Bytes(_) | OutputPiece::End => None,
            OutputPiece::Broken(what) => Some(what.clone()),
            OutputPiece::TimedOut => Some(format!(
                "no answer within timeout_seconds = {} (does it flush its output after every line?)",
                self.timeout.as_secs_f64()
            )),
        };
        let (status, words) = process.end(what.is_none());
        let mut reason =
            what.unwrap_or_else(|| format!("it ended ({status}) before all items were answered"));
        if !words.is_empty() {
            reason.push_str("; its last words: ");
            reason.push_str(&words);
        }
        reason
    }
}

impl Encoder for Command {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn batch_max(&self) -> usize {
        self.batch.saturating_mul(self.processes)
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        // Every process gets as much as any other, in whole batches as far as there are enough of them.
        let share = inputs.len().div_ceil(self.processes).max(self.batch.min(inputs.len()));
        let parts: Vec<&[Input<'_>]> = inputs.chunks(share).collect();
        let answers: Vec<Result<Vec<Answer>>> = thread::scope(|scope| {
            let workers: Vec<_> = parts[1..].iter().map(|part| scope.spawn(|| self.serve(part))).collect();
            let first = self.serve(parts[0]);
            let panicked = |panic| std::panic::resume_unwind(panic);
            std::iter::once(first)
                .chain(workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)))
                .collect()
        });
        Ok(answers.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(self.has_revision.then(|| self.configured.clone()))
    }

    fn configured(&self) -> Result<String> {
        Ok(self.configured.clone())
    }

    fn spent(&self) -> Spent {
        self.meter.spent()
    }
}

/// Reason why a batch has not all its answers.
enum Stop {
    /// Error by which no item can succeed.
    Fatal(Error),
    /// Fault after which the process cannot go on.
    Fault(OutputPiece),
}

fn broken(what: String) -> Stop {
    Stop::Fault(OutputPiece::Broken(what))
}

/// Item as the program reads it.
#[derive(Serialize)]
struct Asked<'a> {
    id: &'a str,
    source: &'a str,
    payload: &'a Value,
    /// Items of this batch that follow. A program that embeds several at once waits for 0.
    left: usize,
}

/// Reads bytes as a line of a program and as a matrix of one, for [`crate::doors`].
pub(crate) fn take_in(bytes: &[u8]) {
    drop((read_json::<Line>(bytes).map(drop), read_npy(bytes)));
}

/// Item as the program writes it.
#[derive(Deserialize)]
struct Line {
    id: String,
    vector: Option<Vec<Option<f32>>>,
    error: Option<String>,
    #[serde(default)]
    permanent: bool,
}

fn request(part: &[Input<'_>]) -> Vec<u8> {
    let mut lines = String::new();
    for (at, input) in part.iter().enumerate() {
        let left = part.len() - 1 - at;
        let item = Asked { id: input.id, source: input.source, payload: input.payload, left };
        // Text and JSON values can always be written as JSON.
        lines.push_str(&serde_json::to_string(&item).unwrap_or_default());
        lines.push('\n');
    }
    lines.into_bytes()
}

fn read_npy(bytes: &[u8]) -> Result<Matrix> {
    array_from_bytes(bytes, "standard output")?.into_matrix("standard output")
}

/// Shortens a line to its start, for an error.
fn shown(line: &[u8]) -> String {
    const SHOWN_MAX: usize = 120;
    let text = String::from_utf8_lossy(line);
    let mut start: String = text.chars().take(SHOWN_MAX).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("{start:?}")
}
