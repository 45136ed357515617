// An Azure SQL database that one managed identity administers: nobody has a password. About 5 dollars a month.

@description('Name of the server, which is part of its address.')
param serverName string

@description('Name of the database.')
param databaseName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Object id of the identity.')
param principalId string

@description('A name for it.')
param principalName string

resource server 'Microsoft.Sql/servers@2023-08-01' = {
  name: serverName
  location: location
  tags: tags
  properties: {
    minimalTlsVersion: '1.2'
    administrators: {
      administratorType: 'ActiveDirectory'
      azureADOnlyAuthentication: true
      login: principalName
      principalType: 'Application'
      sid: principalId
      tenantId: subscription().tenantId
    }
  }
}

// Zero to zero lets in what runs in Azure, of whatever tenant; it still needs the identity.
resource azure 'Microsoft.Sql/servers/firewallRules@2023-08-01' = {
  parent: server
  name: 'azure'
  properties: {
    startIpAddress: '0.0.0.0'
    endIpAddress: '0.0.0.0'
  }
}

resource database 'Microsoft.Sql/servers/databases@2023-08-01' = {
  parent: server
  name: databaseName
  location: location
  tags: tags
  sku: {
    name: 'Basic'
  }
  properties: {}
}
