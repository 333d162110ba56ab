//! The live upgrade of a gallery.
