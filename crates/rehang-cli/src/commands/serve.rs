//! `rehang serve`.

use rehang_core::{Progress, Result};
use rehang_serve::{ServeLimits, ServeOptions, log_to_stderr, serve};
use rehang_upgrade::Upgrade;
use serde_json::json;

use super::{Exit, end_at_ctrl_c, say};
use crate::arguments::ServeArguments;

/// Serves until Ctrl-C or SIGTERM.
pub fn run(arguments: &ServeArguments, json: bool) -> Result<Exit> {
    log_to_stderr(arguments.log_json);
    let limits = ServeLimits {
        body: arguments.body_max,
        seconds: arguments.seconds,
        at_once: arguments.at_once,
        waiting: arguments.waiting,
        rate: arguments.rate,
        streams: arguments.streams,
        wrong_tokens: arguments.wrong_tokens,
    };
    let options = ServeOptions {
        hosts: arguments.hosts.clone(),
        tokens: arguments.tokens.clone(),
        certificate: arguments.certificate.clone().zip(arguments.key.clone()),
        follow: arguments.follow,
        limits,
        ..ServeOptions::new(arguments.listen)
    };
    let stop = Progress::default();
    end_at_ctrl_c(&stop);
    let scheme = if options.certificate.is_some() { "https" } else { "http" };
    let mut address = String::new();
    serve(Upgrade::open(&arguments.config)?, &options, &stop, |listening| {
        address = format!("{scheme}://{listening}/");
        say(&format!("Serving on {address} (Ctrl-C ends it)"));
    })?;
    Exit::Done.print(json, &json!({ "served": address }), "")
}
