//! Every place where the process can die, by name.
//!
//! The upgrade calls [`Observer::reach`](crate::Observer::reach) at each of them. In production nothing
//! happens there; a test makes one of them fail, throws the whole upgrade away, begins again on the same
//! store, and compares the gallery with one that never failed.

/// Declares the places, and the list of all.
macro_rules! places {
    ($($(#[$words:meta])* $name:ident,)*) => {
        /// Place between two effects, where the process can die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Place {
            $($(#[$words])* $name,)*
        }

        impl Place {
            /// Every place.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

places! {
    /// The record says that the upgrade begins; there is no new space yet.
    RecordWritten,
    /// The new space is there and empty.
    SpaceMade,
    /// A page of old vectors was read.
    FillRead,
    /// A page of adapted vectors was written.
    FillWritten,
    /// The order's places were written.
    PrioritiesWritten,
    /// Items that came or changed meanwhile were read.
    CatchUpRead,
    /// Adapted vectors of items that came or changed meanwhile were written.
    CatchUpWritten,
    /// All is filled; the record does not say so yet.
    BeforeFilled,
    /// The record says that all is filled.
    AfterFilled,
    /// A refit is decided; the record has the map before.
    RefitDecided,
    /// The record has the new map, in an epoch of its own; nothing is made anew yet.
    RefitRecorded,
    /// Everything is checked; searches still go to the old space.
    BeforeSwitch,
    /// The record says how the new space serves; searches still go to the old one.
    SwitchRecorded,
    /// Searches go to the new space; nothing is left to do.
    AfterSwitch,
    /// A batch of the backfill was claimed.
    BackfillClaimed,
    /// A batch came back from the encoder, and is unwritten.
    BackfillEncoded,
    /// A batch came back unvouched; it lies in a document.
    BackfillUnvouched,
    /// A batch was written.
    BackfillWritten,
    /// Failures were recorded.
    FailuresRecorded,
    /// The backfill is over, in order or with an error; its leases are still held.
    BackfillEnded,
    /// The record says rolled back; searches may still go to the new space.
    RolledBack,
    /// The record says finished; the old space is still there.
    BeforeDrop,
    /// The old space is gone.
    AfterDrop,
}
