//! Folders of partitions on this machine pass the tests of all folders.

use crate::folders;

#[test]
fn folders_of_this_machine_do_what_folders_must() {
    folders::run(&folders::Here(tempfile::tempdir().unwrap()));
}
