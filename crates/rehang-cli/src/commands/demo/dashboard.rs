//! Dashboard beside the demo: the service of its gallery, which stays after the demo's end.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rehang_core::{Error, Progress, Result};
use rehang_demo::{DemoStep, LiveOptions};
use rehang_serve::{ServeOptions, serve};
use rehang_upgrade::Upgrade;

use super::upgrade;
use crate::arguments::DemoArguments;
use crate::commands::{Exit, end_at_ctrl_c, say};

/// Items that the backfill embeds per second while somebody watches. The demo's application writes some 35 a
/// second that have to be embedded, too.
const WATCHED_RATE: f64 = 100.0;

/// Runs the demo. The dashboard opens once there is a gallery, and stays until Ctrl-C.
pub fn run(arguments: &DemoArguments, listen: SocketAddr, json: bool) -> Result<Exit> {
    say(&format!("The dashboard opens at http://{listen}/ once there is a gallery, and stays until Ctrl-C."));
    let config = arguments.out.join("rehang.toml");
    let (stop, opened) = (Progress::default(), Cell::new(None));
    let steps = |next: &DemoStep| -> Result<()> {
        if *next == DemoStep::Start {
            opened.set(Some(Dashboard::open(&config, listen, &stop)?));
        }
        Ok(())
    };
    let options = LiveOptions { rate: WATCHED_RATE, report: Some("report.json".into()) };
    let outcome = upgrade(arguments, &options, &steps, json);
    let Some(Dashboard { address, thread }) = opened.take() else { return outcome };
    if outcome.is_ok() {
        say(&format!("The demo is over. The dashboard stays at {address} (Ctrl-C ends it)"));
        end_at_ctrl_c(&stop);
    } else {
        stop.cancel();
    }
    let ended = end(thread);
    outcome.and_then(|exit| ended.map(|()| exit))
}

/// Service on a thread of its own, with the address of its dashboard.
struct Dashboard {
    address: String,
    thread: JoinHandle<Result<()>>,
}

impl Dashboard {
    /// Serves the upgrade of a configuration until `stop` is cancelled; returns as soon as it listens.
    fn open(config: &Path, listen: SocketAddr, stop: &Progress) -> Result<Self> {
        let (upgrade, stop) = (Upgrade::open(config)?, stop.clone());
        let (tells, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // `open` waits for the address until it comes, so the channel is never closed before.
            let listening = |address: SocketAddr| {
                let _is_heard = tells.send(address);
            };
            serve(upgrade, &ServeOptions::new(listen), &stop, listening)
        });
        let Ok(address) = told.recv() else {
            return end(thread).and_then(|()| Err(Error::conflict("the dashboard", "it ended at once")));
        };
        let address = format!("http://{address}/");
        say(&format!("\nDashboard: {address}"));
        Ok(Self { address, thread })
    }
}

/// Waits for the end of a service.
fn end(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::conflict("the dashboard", "it died; this is a defect")))
}
