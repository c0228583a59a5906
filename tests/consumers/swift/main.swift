import Foundation

// LIBRARY, the first argument, is linked with.
guard CommandLine.arguments.count == 3 else {
  FileHandle.standardError.write(Data("usage: program LIBRARY BUNDLE\n".utf8))
  exit(2)
}
do {
  FileHandle.standardOutput.write(try Scenario().play(bundle: CommandLine.arguments[2]))
} catch {
  FileHandle.standardError.write(Data("\(error)\n".utf8))
  exit(1)
}
