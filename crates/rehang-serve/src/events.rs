//! Events for the dashboard: what changes is told as it changes.

use std::sync::Arc;

use rehang_core::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

/// Number of events that a slow reader may be behind before it misses some.
const EVENTS_MAX: usize = 64;

/// Event with its name and its data, as JSON.
#[derive(Debug, Clone)]
pub struct PushedEvent {
    pub name: &'static str,
    pub data: Arc<str>,
}

/// Sender of events to all who listen.
#[derive(Clone)]
pub struct Events(broadcast::Sender<PushedEvent>);

impl Events {
    pub fn new() -> Self {
        Self(broadcast::channel(EVENTS_MAX).0)
    }

    pub fn send(&self, name: &'static str, data: &impl Serialize) -> Result<()> {
        let data = value(data)?.to_string().into();
        // An error says that nobody listens.
        drop(self.0.send(PushedEvent { name, data }));
        Ok(())
    }

    pub fn listen(&self) -> broadcast::Receiver<PushedEvent> {
        self.0.subscribe()
    }

    pub fn are_heard(&self) -> bool {
        self.0.receiver_count() > 0
    }
}

/// Makes JSON of a result.
pub fn value(result: &impl Serialize) -> Result<Value> {
    serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error))
}
