//! One running program: what goes in, what comes out, and its end.
//!
//! A program can stop reading, stop writing or close only one of the two, so each of its pipes has a thread
//! of its own. The thread that waits for an answer touches no pipe, and every wait has a deadline.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rehang_core::{Error, Result};

use crate::meter::lock;

/// Last lines of the standard error that are kept; `WORDS_LINE_BYTES` is the length of each.
const WORDS_LINES: usize = 5;
const WORDS_LINE_BYTES: u64 = 400;
/// Lines that may wait to be read. A program that writes without being asked is held up by its pipe, not kept
/// in memory.
const LINES_WAITING_MAX: usize = 64;
/// Longest time that a program that has closed its output may take to end, and its last words to arrive.
const END_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at whether a program has ended; the system has no wait with a deadline.
const LOOK: Duration = Duration::from_millis(2);

/// Way in which the program is started.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) folder: PathBuf,
    pub(super) line_bytes_max: usize,
}

/// Way in which the program's output is cut.
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    /// Cut at line ends.
    Lines,
    /// Whole output, of at most so many bytes.
    Whole(usize),
}

/// Next piece of the program's output, or why there is none.
#[derive(Debug)]
pub(super) enum OutputPiece {
    /// A line without its end, or the whole output.
    Bytes(Vec<u8>),
    /// The output is closed.
    End,
    /// Nothing before the deadline.
    TimedOut,
    /// Something that cannot be.
    Broken(String),
}

/// A running program. It is killed, with everything it started, when this value goes.
pub(super) struct Process {
    child: Child,
    /// Status with which the program ended, once it is off the system's list: from then on its number may be
    /// another program's.
    ended: Option<ExitStatus>,
    /// Channel to the thread that writes; none once the input is closed.
    input: Option<Sender<Vec<u8>>>,
    output: Receiver<OutputPiece>,
    words: Arc<Mutex<VecDeque<String>>>,
    /// Channel that is closed when the standard error is.
    words_end: Receiver<()>,
}

impl Process {
    pub(super) fn start(launch: &Launch, output: Output) -> Result<Self> {
        let mut command = std::process::Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .current_dir(&launch.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // In a group of its own, the program can be ended with everything that it starts (a shell's `sleep`).
        // An interrupt at the terminal reaches rehang alone, which ends its batch first.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = spawn(command).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                let place = if launch.program.components().count() > 1 { "the file system" } else { "PATH" };
                Error::not_found("program", launch.program.display(), place)
            } else {
                Error::option(
                    "program",
                    launch.program.display(),
                    format!("a program that can be started ({error})"),
                )
            }
        })?;
        let (input, to_write) = channel();
        let (pieces, output_of) = sync_channel(LINES_WAITING_MAX);
        let (words_done, words_end) = channel();
        let words = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(pipe) = child.stdin.take() {
            thread::spawn(move || write_all(pipe, &to_write));
        }
        if let Some(pipe) = child.stdout.take() {
            let line_bytes_max = launch.line_bytes_max;
            thread::spawn(move || match output {
                Output::Lines => read_lines(pipe, line_bytes_max, &pieces),
                Output::Whole(bytes_max) => read_whole(pipe, bytes_max, &pieces),
            });
        }
        if let Some(pipe) = child.stderr.take() {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                listen(pipe, &words);
                drop(words_done);
            });
        }
        Ok(Self { child, ended: None, input: Some(input), output: output_of, words, words_end })
    }

    /// Hands bytes to the program, without waiting until it has read them.
    pub(super) fn write(&self, bytes: Vec<u8>) {
        if let Some(input) = &self.input {
            // The writing thread is gone when the program is; its output says so.
            let _ = input.send(bytes);
        }
    }

    /// Closes the program's input once everything is written.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Takes a line that is there although nothing was asked.
    pub(super) fn unasked(&self) -> Option<Vec<u8>> {
        match self.output.try_recv() {
            Ok(OutputPiece::Bytes(line)) => Some(line),
            _ => None,
        }
    }

    /// Waits for the next piece of the output, until a deadline.
    pub(super) fn next(&self, deadline: Instant) -> OutputPiece {
        match self.output.recv_timeout(deadline.saturating_duration_since(rehang_clock::now())) {
            Ok(piece) => piece,
            Err(RecvTimeoutError::Timeout) => OutputPiece::TimedOut,
            Err(RecvTimeoutError::Disconnected) => OutputPiece::End,
        }
    }

    /// Waits for the end of the program and says whether it ended well.
    pub(super) fn succeeds(&mut self, deadline: Instant) -> bool {
        self.status(deadline).is_some_and(|status| status.success())
    }

    /// Ends the program, and gives in words how it ended, and its last words. With `by_itself` it is given a
    /// moment to end first.
    pub(super) fn end(mut self, by_itself: bool) -> (String, String) {
        let status = if by_itself { self.status(rehang_clock::now() + END_MAX) } else { None };
        self.kill();
        // The program's last words may still be on their way when its output is closed. Nothing is ever sent
        // through this channel: it ends when the thread that reads the words ends.
        let _ = self.words_end.recv_timeout(END_MAX);
        let words: Vec<String> = lock(&self.words).iter().cloned().collect();
        let status = status.map_or_else(|| "it had closed its output".into(), |status| status.to_string());
        (status, words.join(" | "))
    }

    fn status(&mut self, deadline: Instant) -> Option<ExitStatus> {
        while !self.has_ended() {
            if rehang_clock::now() >= deadline {
                return None;
            }
            rehang_clock::wait(LOOK);
        }
        self.kill()
    }

    /// Whether the program has ended. It stays on the system's list, so that its number stays its own.
    fn has_ended(&mut self) -> bool {
        #[cfg(unix)]
        {
            use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.ended.is_some()
                || !matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), options), Ok(None))
        }
        #[cfg(not(unix))]
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the program, if it has not ended, and what it started, and takes it off the system's list.
    fn kill(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            #[cfg(unix)]
            {
                use rustix::process::{Pid, Signal, kill_process_group};
                // The group is named by its first process, whose number no other process has before the wait
                // below.
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            }
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
        self.ended
    }
}

/// Starts a program that ends when this process does, in whatever way this process ends.
///
/// Linux ends the program with the thread that started it, so a thread that lives as long as the process
/// starts all of them. Elsewhere the program sees its input end.
fn spawn(mut command: std::process::Command) -> std::io::Result<Child> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt as _;
        use std::sync::OnceLock;

        type Start = (std::process::Command, Sender<std::io::Result<Child>>);
        static STARTER: OnceLock<Mutex<Sender<Start>>> = OnceLock::new();
        let starter = STARTER.get_or_init(|| {
            let (commands, to_start) = channel::<Start>();
            thread::spawn(move || {
                for (mut command, started) in to_start {
                    drop(started.send(command.spawn()));
                }
            });
            Mutex::new(commands)
        });
        let parent = rustix::process::getpid();
        let tie = move || {
            use rustix::process::{Signal, getppid, set_parent_process_death_signal};
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call.
            if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
        };
        // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is
        // taken.
        unsafe {
            command.pre_exec(tie);
        }
        let (started, result) = channel();
        drop(lock(starter).send((command, started)));
        result.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()))
    }
    #[cfg(not(target_os = "linux"))]
    command.spawn()
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_all(mut pipe: ChildStdin, to_write: &Receiver<Vec<u8>>) {
    for bytes in to_write {
        if pipe.write_all(&bytes).and_then(|()| pipe.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(pipe: ChildStdout, line_bytes_max: usize, pieces: &SyncSender<OutputPiece>) {
    let mut reader = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        // One byte more than allowed tells a line that is too long from one that just fits.
        let read = (&mut reader).take(line_bytes_max as u64 + 1).read_until(b'\n', &mut line);
        let message = match read {
            Ok(0) => return,
            Ok(_) if line.len() > line_bytes_max => {
                OutputPiece::Broken(format!("it wrote a line of more than {line_bytes_max} bytes"))
            }
            Ok(_) => {
                while line.last().is_some_and(|&byte| byte == b'\n' || byte == b'\r') {
                    line.pop();
                }
                OutputPiece::Bytes(line)
            }
            Err(error) => OutputPiece::Broken(format!("its output cannot be read ({error})")),
        };
        let broken = matches!(message, OutputPiece::Broken(_));
        if pieces.send(message).is_err() || broken {
            return;
        }
    }
}

fn read_whole(pipe: ChildStdout, bytes_max: usize, pieces: &SyncSender<OutputPiece>) {
    let mut bytes = Vec::new();
    let message = match pipe.take(bytes_max as u64 + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() > bytes_max => {
            OutputPiece::Broken(format!("it wrote more than {bytes_max} bytes"))
        }
        Ok(0) => return,
        Ok(_) => OutputPiece::Bytes(bytes),
        Err(error) => OutputPiece::Broken(format!("its output cannot be read ({error})")),
    };
    // The receiver is gone once the process is given up.
    let _ = pieces.send(message);
}

fn listen(pipe: ChildStderr, words: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    // A line that is too long is kept in pieces; the last ones count.
    while matches!((&mut reader).take(WORDS_LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line).trim().to_string();
        line.clear();
        if text.is_empty() {
            continue;
        }
        let mut words = lock(words);
        if words.len() == WORDS_LINES {
            words.pop_front();
        }
        words.push_back(text);
    }
}
