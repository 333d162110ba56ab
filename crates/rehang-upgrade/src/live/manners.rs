//! Keeps what encoders have learnt of their services, such as how many texts a request may have: one small
//! document a space, beside the fingerprint of the encoder that filled it. A process that begins takes it
//! over, so that it need not learn the same by requests that are refused.

use rehang_core::Result;
use rehang_encode::Encoder;
use rehang_store::Ledger;

/// Names the document about a space's encoder.
fn document(space: &str) -> String {
    format!("service of {space}")
}

/// Reads what encoders of a space have learnt; `None` where that is nothing.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn read(store: &dyn Ledger, space: &str) -> Result<Option<String>> {
    Ok(store.document(&document(space))?.map(|(_, text)| text).filter(|text| !text.is_empty()))
}

/// Gives an encoder what others have learnt of its service; returns it too, for [`keep`].
///
/// # Errors
///
/// Those of the store.
pub(crate) fn recall(store: &dyn Ledger, space: &str, encoder: &dyn Encoder) -> Result<Option<String>> {
    let stored_text = read(store, space)?;
    if let Some(learnt) = &stored_text {
        encoder.recall(learnt);
    }
    Ok(stored_text)
}

/// Keeps what an encoder has learnt, unless it is the text in `stored_text`, which the store held last. Where
/// another worker has learnt something meanwhile, the encoder takes that over first, and the next call keeps
/// both.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn keep(
    store: &dyn Ledger,
    space: &str,
    encoder: &dyn Encoder,
    stored_text: &mut Option<String>,
) -> Result<()> {
    let learnt = encoder.learnt();
    if learnt.is_none() || learnt == *stored_text {
        return Ok(());
    }
    let stored_document = store.document(&document(space))?;
    let (version, text) = stored_document.unzip();
    let text = text.filter(|text| !text.is_empty());
    if text != *stored_text {
        if let Some(of_others) = &text {
            encoder.recall(of_others);
        }
        *stored_text = text;
        return Ok(());
    }
    match store.set_document(&document(space), version, learnt.as_deref().unwrap_or_default()) {
        Err(error) if error.is_changed_meanwhile() => Ok(()),
        outcome => {
            outcome?;
            *stored_text = learnt;
            Ok(())
        }
    }
}
