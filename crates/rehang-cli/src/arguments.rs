//! Arguments and options of the command line. Parsing only: nothing here opens a file.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "help is plain text: brackets are tables of the configuration, or what may be left out"
)]

/// Declares groups of arguments, one argument a line: its name, its type, and what `clap` is told of it
/// beside its help. The name is that of a library's option. Where `=>` names the library's options, there is
/// an argument for each of them. Where `=> ..` names them, there is one for some: `fill` fills these in, and
/// `words` writes them as a person types them.
#[doc(hidden)]
#[macro_export]
macro_rules! arguments {
    () => {};
    ($(#[$about:meta])* $name:ident { $($fields:tt)* } $($others:tt)*) => {
        $crate::arguments!(@group $(#[$about])* $name { $($fields)* });
        $crate::arguments!($($others)*);
    };
    ($(#[$about:meta])* $name:ident => $options:ident {
        $($(#[$help:meta])* $field:ident: $type:ty = [$($clap:tt)*],)*
    } $($others:tt)*) => {
        $crate::arguments!(@group $(#[$about])* $name { $($(#[$help])* $field: $type = [$($clap)*],)* });
        impl $crate::arguments::library::Argument<$options> for $name {
            fn value(&self) -> rehang_core::Result<$options> {
                Ok($crate::arguments::library::options!($options { $($field),* } from self))
            }
        }
        $crate::arguments!($($others)*);
    };
    ($(#[$about:meta])* $name:ident => ..$options:ident {
        $($(#[$help:meta])* $field:ident: $type:ty = [$($clap:tt)*],)*
    } $($others:tt)*) => {
        $crate::arguments!(@group $(#[$about])* $name { $($(#[$help])* $field: $type = [$($clap)*],)* });
        impl $name {
            /// Fills in the options of the group, and leaves all others as they are.
            pub fn fill(&self, options: $options) -> rehang_core::Result<$options> {
                Ok($crate::arguments::library::options!($options { $($field),* } from self; ..options))
            }

            /// Writes the arguments as a person types them.
            pub fn words(&self) -> Vec<String> {
                [$($crate::arguments::library::Typed::words(&self.$field, stringify!($field))),*].concat()
            }
        }
        $crate::arguments!($($others)*);
    };
    (@group $(#[$about:meta])* $name:ident { $($(#[$help:meta])* $field:ident: $type:ty = [$($clap:tt)*],)* }) => {
        #[derive(Debug, clap::Args)]
        $(#[$about])*
        pub struct $name {
            $($(#[$help])* #[clap($($clap)*)] pub $field: $type,)*
        }
    };
}

pub mod gallery;
pub mod groups;
pub mod library;
pub mod upgrade;
pub mod vectors;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use gallery::{BenchArguments, GalleryCommand, InitArguments, SearchArguments};
use upgrade::{UpgradeCommand, UpgradeConfig};
use vectors::{
    CurveArguments, FitArguments, IdentifyArguments, OrderArguments, ReportArguments, TransformArguments,
};

/// Replace the embedding model behind a live vector gallery: searches improve at once, items are re-embedded
/// worst first.
///
/// Start with `rehang demo`. With your own vectors: `rehang fit` learns a map from old to new vectors on a
/// sample embedded by both models, `rehang report` shows what switching would buy.
#[derive(Debug, Parser)]
#[command(name = "rehang", version, propagate_version = true, max_term_width = 110)]
pub struct Arguments {
    /// Verb to carry out.
    #[command(subcommand)]
    pub command: Command,

    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub json: bool,

    /// Threads to use [default: all cores]. Results do not depend on it.
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[cfg(feature = "demo")]
    /// A whole upgrade of a small image gallery on this machine, with a report at the end (under a minute,
    /// offline).
    Demo(DemoArguments),
    #[cfg(not(feature = "demo"))]
    #[command(hide = true, disable_help_flag = true)]
    Demo(LeftOut),
    /// Learn the map from old to new vectors (and how far to trust it) from pairs.
    Fit(FitArguments),
    /// Write an adapter as an ONNX file, for any runtime and device.
    Export(ExportOnnxArguments),
    /// Turn old vectors into vectors of the new space, with σ² for each; streams files of any size.
    Transform(TransformArguments),
    /// Say in which order items should be re-embedded.
    Order(OrderArguments),
    /// The exact backfilling curve: what every percent of re-embedding buys.
    Curve(CurveArguments),
    /// Compare adapters and orders on a gallery whose new vectors are known, and write a report to look at.
    Report(ReportArguments),
    /// Say which model made which vectors: one, a mixture of several, or none of those given.
    ///
    /// With what models give for the same items (--models), each vector is told: cut, scaled or rounded ones
    /// too. With --config, random items of the gallery are embedded again by the encoders that it names. With
    /// --new, old vectors of two kinds are seen by their neighbours; with nothing beside the vectors, two
    /// models that were trained apart are seen by their axes. Exit code 1 where more than one model made
    /// them, or none of those given.
    ///
    /// Example: rehang identify gallery.npy --models l6=by-l6.npy l12=by-l12.npy
    Identify(IdentifyArguments),
    /// Say what an adapter file is: spaces, method, seed, inputs.
    Inspect(InspectArguments),
    /// Say which of several models to upgrade to, on a sample of your own documents and queries: quality with
    /// its range, latency, price of all, storage.
    ///
    /// Exit code 1 where a model could not be measured, or has no vector for some of the sample.
    ///
    /// Example: rehang bench --models models.toml --items items.jsonl --clicks clicks.csv --of 5000000
    Bench(BenchArguments),
    /// Make, fill, read and change a gallery file.
    #[command(subcommand)]
    Gallery(GalleryCommand),
    /// Search a gallery, right at every stage of an upgrade.
    Search(SearchArguments),
    /// Write a first rehang.toml, with a comment on every part, from what a gallery and an adapter say of
    /// themselves.
    Init(InitArguments),
    /// The live upgrade named in rehang.toml: old model to new one, worst first, while people search and
    /// write.
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Carry floors of searches, such as a similarity of 0.3, over to the new model of an upgrade: each lets
    /// as many answers through as today's.
    Thresholds(ThresholdsArguments),
    /// Look whether a gallery is sound: mixed models, stale or untagged vectors, index health, a forgotten
    /// upgrade.
    Doctor(DoctorArguments),
    #[cfg(feature = "serve")]
    /// Serve searches, writes and the steps of the upgrade over HTTP, with metrics and a dashboard.
    ///
    /// Ends in order at Ctrl-C or SIGTERM: what is at an encoder is written, and the next service goes on
    /// with operations that are under way.
    ///
    /// Example: rehang serve --listen 127.0.0.1:7878 --tokens tokens.toml --follow
    Serve(ServeArguments),
    #[cfg(not(feature = "serve"))]
    #[command(hide = true, disable_help_flag = true)]
    Serve(LeftOut),
    /// Print the completions of a shell; your shell's manual says where they belong.
    Completions(CompletionsArguments),
    /// Write the manual: a page for every command.
    Man(ManArguments),
}

#[cfg(feature = "serve")]
arguments! {
    /// Options of `rehang serve`.
    ServeArguments {
        /// Configuration of the upgrade.
        config: PathBuf = [long, value_name = "FILE", default_value = "rehang.toml"],
        /// Address to listen on. One that other machines reach needs --tokens.
        listen: std::net::SocketAddr = [long, value_name = "ADDRESS", default_value = "127.0.0.1:7878"],
        /// Tokens with their roles, as TOML: [[token]] with name, role (read, write or operate) and token.
        tokens: Option<PathBuf> = [long, value_name = "FILE"],
        /// Name that the service is called by beside its address, such as a proxy's (repeat for several).
        hosts: Vec<String> = [long = "host", value_name = "NAME"],
        /// Certificate chain for TLS, in PEM; it is read again when it changes.
        certificate: Option<PathBuf> = [long, value_name = "FILE", requires = "key"],
        /// Key of the certificate, in PEM.
        key: Option<PathBuf> = [long, value_name = "FILE", requires = "certificate"],
        /// Do from the switch on what `rehang upgrade run --follow` does: find what comes with an old vector
        /// alone, and re-embed everything as [run] allows.
        follow: bool = [long],
        /// Bytes of a request's body, at most.
        body_max: usize = [long, value_name = "BYTES", default_value_t = rehang_serve::ServeLimits::default().body],
        /// Seconds that a body, its turn and its work may take, each.
        seconds: u64 = [long, value_name = "N", default_value_t = rehang_serve::ServeLimits::default().seconds],
        /// Requests that read the gallery at the same time, and as many that change it.
        at_once: usize = [long, value_name = "N", default_value_t = rehang_serve::ServeLimits::default().at_once],
        /// Requests that wait for their turn; more are turned away.
        waiting: usize = [long, value_name = "N", default_value_t = rehang_serve::ServeLimits::default().waiting],
        /// Requests a second of one token, at most [default: as many as come].
        rate: Option<f64> = [long, value_name = "N/s"],
        /// Streams of events that are open at the same time, one for each open dashboard; more are turned away.
        streams: usize = [long, value_name = "N", default_value_t = rehang_serve::ServeLimits::default().streams],
        /// Wrong tokens of one address in a minute; more are told to wait, right ones never.
        wrong_tokens: usize = [long, value_name = "N", default_value_t = rehang_serve::ServeLimits::default().wrong_tokens],
        /// Write the log, on stderr, as lines of JSON.
        log_json: bool = [long],
    }
}

arguments! {
    /// Options of `rehang completions`.
    CompletionsArguments {
        /// The shell.
        shell: clap_complete::Shell = [],
    }

    /// Options of `rehang man`.
    ManArguments {
        /// Folder for the pages; pages of the same names are replaced.
        out: PathBuf = [long, value_name = "DIR"],
        /// roff: one page a command, for `man`; markdown: all commands on one page, `cli.md`.
        format: ManFormat = [long, value_enum, default_value_t = ManFormat::Roff],
    }
}

/// Arguments behind a command that this build leaves out, with the feature that the command needs. They are
/// not read: the command says how to build it.
#[cfg(not(all(feature = "demo", feature = "serve")))]
#[derive(Debug, clap::Args)]
pub struct LeftOut {
    /// Words of the line, as they stand there.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub rest: Vec<std::ffi::OsString>,
}

/// How the manual is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ManFormat {
    /// One page a command, for `man`.
    Roff,
    /// All commands on one page.
    Markdown,
}

#[cfg(feature = "demo")]
arguments! {
    /// Options of `rehang demo`.
    DemoArguments {
        /// Folder for the report and the files of the upgrade: a new or an empty one, or that of an earlier
        /// demo, which begins anew.
        out: PathBuf = [long, value_name = "DIR", default_value = "rehang-demo"],
        /// Seed of everything random.
        seed: u64 = [long, default_value_t = 0],
        /// Show the upgrade on a dashboard at this address of the machine, and keep it there until Ctrl-C.
        /// Without an address it is 127.0.0.1:7878.
        #[cfg(feature = "serve")]
        serve: Option<std::net::SocketAddr> =
            [long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:7878"],
    }
}

arguments! {
    /// Options of `rehang export`.
    ExportOnnxArguments {
        /// The file of the adapter.
        file: PathBuf = [],
        /// The ONNX file to write.
        output: PathBuf = [short, long, value_name = "FILE"],
    }

    /// Options of `rehang inspect`.
    InspectArguments {
        /// Adapter file.
        adapter: PathBuf = [],
    }

    /// Options of `rehang thresholds`.
    ThresholdsArguments {
        /// Floors of today: similarities, inner products, or Euclidean distances where the old space has
        /// these [default: usual ones].
        floors: Vec<f64> = [value_delimiter = ',', allow_negative_numbers = true],
        config: UpgradeConfig = [flatten],
    }

    /// Options of `rehang doctor`.
    DoctorArguments {
        /// Gallery file [default: the one of --config, which is enough by itself].
        gallery: Option<PathBuf> = [long, value_name = "FILE", required_unless_present = "config"],
        /// Configuration of an upgrade, to check that too.
        config: Option<PathBuf> = [long, value_name = "FILE"],
        /// Make search indexes again that have fallen behind or are bloated.
        repair: bool = [long],
    }
}
