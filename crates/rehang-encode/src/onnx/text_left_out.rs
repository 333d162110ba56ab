//! Stands in for [`Texts`] in a build without the feature `tokenizers`: no model that reads texts can be
//! opened.

use std::path::Path;

use rehang_core::finding::Finding;
use rehang_core::{ErrorKind, Result};
use rten::{NodeId, ValueOrView};

use super::model::{ModelInput, Positions};
use crate::config::{Pooling, TextInput};
use crate::contract::ItemFailure;

/// Stand-in for the texts of a model, of which there is no value.
pub(super) enum Texts {}

impl Texts {
    pub(super) fn open(
        _: &TextInput,
        _: &Path,
        _: &[ModelInput],
        _: (&str, Option<Positions>),
    ) -> Result<Self> {
        Err(ErrorKind::MissingFeature { feature: "tokenizers" }.into())
    }

    pub(super) fn pooling(&self) -> Pooling {
        match *self {}
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        match *self {}
    }

    pub(super) fn tokens(&self, _: &str) -> Result<Vec<u32>, ItemFailure> {
        match *self {}
    }

    pub(super) fn feeds(&self, _: &[&[u32]], _: usize) -> Result<Vec<(NodeId, ValueOrView<'_>)>, String> {
        match *self {}
    }
}
