//! Journal of batches: a folder with a file a batch, which several processes read and write.

use std::fs::{File, TryLockError};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rehang_core::{Error, Result};
use rehang_files::AtomicFile;
use serde_json::{Value, json};

use super::super::Http;
use super::kept::{Batches, Counted, DAY_MS, OF, OWN, Sent, Stage};
use crate::meter::lock;

/// Name of the journal beside the configuration.
pub(super) const JOURNAL: &str = "rehang-batches";
/// Lock of the journal that is held while it is read and texts are sent, so that no two processes send the
/// same ones. `WRITING` is held for a moment while a file of it is changed.
///
/// The system lets go of both when a process ends.
pub(super) const SENDING: &str = "sending.lock";
const WRITING: &str = "writing.lock";
/// Time between two looks whether another process still sends texts.
const TURN_REST: Duration = Duration::from_secs(1);
/// Milliseconds after which a batch that is over has no answers left: the journal forgets it, and nobody
/// waits for such batches of the list.
const KEPT_FOR_MS: u64 = 30 * DAY_MS;

impl Batches {
    pub(super) fn path(&self, own_name: &str) -> PathBuf {
        self.folder.join(format!("{own_name}.json"))
    }

    /// Opens a lock of the journal, whose folder is made where there is none.
    pub(super) fn lock_named(&self, name: &str) -> Result<File> {
        fs_err::create_dir_all(&self.folder).map_err(|error| Error::io("create", &self.folder, &error))?;
        let path = self.folder.join(name);
        let file = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        Ok(file.map_err(|error| Error::io("open", &path, &error))?.into_file())
    }

    /// Holds the journal as it is until the file is dropped. Where a disk has no locks, two processes may
    /// count a batch twice.
    fn hold(&self) -> Result<File> {
        let file = self.lock_named(WRITING)?;
        drop(file.lock());
        Ok(file)
    }

    /// Writes a batch that is not in the journal into it.
    pub(super) fn keep(&self, sent: &Sent) -> Result<()> {
        let _held = self.hold()?;
        AtomicFile::write(self.path(&sent.own), json!(sent).to_string())
    }

    /// Changes what the journal says of a batch, and takes in what other processes have written there. Gives
    /// what it said before; `None` where one of them has removed the batch.
    pub(super) fn change(&self, own_name: &str, change: impl FnOnce(&mut Sent)) -> Result<Option<Sent>> {
        let _held = self.hold()?;
        let path = self.path(own_name);
        let Some(before) = read_sent(&path)? else { return Ok(None) };
        let mut sent = before.clone();
        change(&mut sent);
        if sent != before {
            AtomicFile::write(path, json!(sent).to_string())?;
        }
        if let Some(batch) = lock(&self.state).batches.get_mut(own_name) {
            batch.sent = Sent { texts: mem::take(&mut batch.sent.texts), ..sent };
        }
        Ok(Some(before))
    }

    /// Remembers the service's name for a batch.
    pub(super) fn note_created(&self, own_name: &str, batch: &str) -> Result<()> {
        if let Some(known_batch) = lock(&self.state).batches.get_mut(own_name) {
            known_batch.sent.batch = Some(batch.into());
        }
        self.change(own_name, |sent| sent.batch = Some(batch.into())).map(drop)
    }

    /// Reads the batches of this encoder that the journal has, the earliest first, without those of which
    /// this process knows as much.
    fn kept(&self) -> Result<Vec<Sent>> {
        let entries =
            fs_err::read_dir(&self.folder).map_err(|error| Error::io("read", &self.folder, &error))?;
        let mut sent_batches = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| Error::io("read", &self.folder, &error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let own_name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if lock(&self.state).batches.get(own_name).is_some_and(|batch| batch.sent.batch.is_some()) {
                continue;
            }
            let Some(sent) = read_sent(&path)?.filter(|sent| sent.encoder == self.encoder) else { continue };
            let is_old = sent.at_ms > 0 && sent.at_ms.saturating_add(KEPT_FOR_MS) < rehang_clock::unix_ms();
            if sent.is_counted && is_old {
                // A file that cannot be removed costs a little room.
                drop(fs_err::remove_file(&path));
                continue;
            }
            sent_batches.push(sent);
        }
        sent_batches.sort_by_key(|sent| sent.at_ms);
        Ok(sent_batches)
    }
}

impl Http {
    /// Waits until no other process with this journal sends texts; none does until the file is dropped.
    pub(super) fn turn_to_send(&self, batches: &Batches) -> Result<File> {
        let file = batches.lock_named(SENDING)?;
        // A disk without locks is as two machines are, which do not know of each other either.
        while let Err(TryLockError::WouldBlock) = file.try_lock() {
            self.wait_until(self.clock.now() + TURN_REST)?;
        }
        Ok(file)
    }

    /// Reads the journal, and the batches of the service's list that are not in it. Other processes may have
    /// sent something since the last time.
    pub(super) fn read_journal(&self, batches: &Batches) -> Result<()> {
        let sent_batches = batches.kept()?;
        let is_first = !mem::replace(&mut lock(&batches.state).is_read, true);
        for sent in sent_batches {
            if let Some(batch) = lock(&batches.state).batches.get_mut(sent.own.as_str()) {
                batch.sent = Sent { texts: mem::take(&mut batch.sent.texts), ..sent };
                continue;
            }
            // The process that has sent a batch since the first reading tells the account of it, unless that
            // process dies.
            let counted = (is_first && !sent.is_told).then(|| sent.counted());
            if let Some(counted) = &counted {
                self.count(counted);
            }
            lock(&batches.state).add(sent, Stage::Others, counted);
        }
        for service_batch in self.list(rehang_clock::unix_ms().saturating_sub(KEPT_FOR_MS))?.0 {
            let Some(own_name) =
                service_batch.mark(OWN).filter(|_| service_batch.mark(OF) == Some(&batches.encoder))
            else {
                continue;
            };
            let is_named = lock(&batches.state).batches.get(own_name).map(|batch| batch.sent.batch.is_some());
            if let Some(is_named) = is_named {
                if !is_named {
                    batches.note_created(own_name, &service_batch.id)?;
                }
                continue;
            }
            let is_old =
                service_batch.created_ms().is_some_and(|at| at + KEPT_FOR_MS < rehang_clock::unix_ms());
            // The batch's name becomes that of a file.
            let is_name = own_name.len() <= 64 && own_name.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let is_wanted = !is_old && is_name && service_batch.status != "failed";
            let Some(file) = service_batch.input_file_id.clone().filter(|_| is_wanted) else { continue };
            let mut texts = Vec::new();
            let is_there = self.lines_of(&file, &mut |line| {
                let line: Value = serde_json::from_slice(line).unwrap_or_default();
                texts.extend(line.get("custom_id").and_then(Value::as_str).map(str::to_owned));
            })?;
            if !is_there {
                continue;
            }
            let sent = Sent {
                encoder: batches.encoder.clone(),
                own: own_name.to_owned(),
                batch: Some(service_batch.id.clone()),
                file,
                at_ms: service_batch.created_ms().unwrap_or(0),
                tokens: 0,
                is_told: true,
                is_counted: true,
                texts,
            };
            batches.keep(&sent)?;
            lock(&batches.state).add(sent, Stage::Others, None);
        }
        Ok(())
    }

    /// Counts what a batch was reckoned to take, where the process that sent it may have died before the
    /// account was told.
    pub(super) fn take_over(&self, batches: &Batches, own_name: &str) -> Result<()> {
        let is_anothers = || {
            let state = lock(&batches.state);
            state.batches.get(own_name).is_some_and(|batch| batch.counted.is_none() && !batch.sent.is_told)
        };
        if !is_anothers() {
            return Ok(());
        }
        batches.change(own_name, |_| {})?;
        if let Some(batch) = lock(&batches.state).batches.get_mut(own_name)
            && batch.counted.is_none()
            && !batch.sent.is_told
        {
            self.count(batch.counted.insert(batch.sent.counted()));
        }
        Ok(())
    }

    /// Notes that the account of the budget was told what this process has used until some moment.
    pub(in crate::http) fn note_told(&self, batches: &Batches) {
        let mut told_names = Vec::new();
        for (own_name, batch) in &mut lock(&batches.state).batches {
            if let Some(counted) = batch.counted.as_mut().filter(|_| !batch.sent.is_told) {
                counted.told = counted.told.saturating_add(1);
                // The first time, the account may have been told of a moment before.
                told_names.extend((counted.told > 1).then(|| own_name.clone()));
            }
        }
        for own_name in told_names {
            // Where it cannot be written, the next process counts it once more, and stays within the budget
            // all the same.
            let before = batches.change(&own_name, |sent| sent.is_told = true).ok().flatten();
            // Another process has sent it or taken it over, lives, and was first: one of the two counts it.
            if before.is_some_and(|before| before.is_told)
                && let Some(batch) = lock(&batches.state).batches.get_mut(&own_name)
                && let Some(counted) = batch.counted.take()
            {
                self.unreserve(counted.items as usize, counted.tokens);
            }
        }
    }

    fn count(&self, counted: &Counted) {
        self.meter.sent(counted.items as usize);
        self.meter.tokens(counted.tokens);
    }

    /// Forgets a batch that was not created, and puts back what was reserved for it.
    pub(super) fn drop_sent(&self, batches: &Batches, own_name: &str) -> Result<()> {
        let batch = {
            let mut state = lock(&batches.state);
            state.of_text.retain(|_, of| &**of != own_name);
            state.batches.remove(own_name)
        };
        if let Some(batch) = batch {
            if let Some(counted) = batch.counted {
                self.unreserve(counted.items as usize, counted.tokens);
            }
            self.delete(&batch.sent.file);
        }
        let _held = batches.hold()?;
        let path = batches.path(own_name);
        match fs_err::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a batch of the journal; `None` where another process removed it meanwhile.
fn read_sent(path: &Path) -> Result<Option<Sent>> {
    let text = match fs_err::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| Error::io("read", path, &error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| Error::corrupt(path.display(), error))
}
