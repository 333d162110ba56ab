//! Folders of partitions on this machine.

use crate::folders;

#[test]
fn folders_of_this_machine_do_what_folders_must() {
    folders::run(&folders::Here(tempfile::tempdir().unwrap()));
}
